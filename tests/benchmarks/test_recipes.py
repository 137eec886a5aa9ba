"""Candidates for recipes: every file is a matrix whose cells can be planned, each with changes of its own."""

from pathlib import Path

import pytest

from longspan.cli.matrix_file import read_matrix
from longspan.core.cell import Cell
from longspan.runs.cell import RunPlan

FILES = sorted((Path(__file__).parents[2] / "benchmarks" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_candidate_is_a_cell_with_changes_of_its_own(file):
    cells = [
        Cell(task, mechanism, part.pattern, part.protocol, part.tier, 0, part.overrides)
        for part in read_matrix(file)
        for task in part.tasks
        for mechanism in part.mechanisms
    ]
    assert {cell.task for cell in cells} == {file.stem}
    assert len({tuple(sorted(cell.overrides.items())) for cell in cells}) == len(cells) > 2
    for cell in cells:
        plan = RunPlan.of(cell)
        assert plan.protocol != plan.task.protocol(cell.protocol, cell.tier)


def test_there_are_candidates():
    assert {file.stem for file in FILES} == {"image", "pathfinder"}
