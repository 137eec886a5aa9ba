"""Matrices: every cell can be planned, and each candidate for a recipe has changes of its own."""

from pathlib import Path

import pytest

from longspan import suites
from longspan.cli.matrix_file import read_matrix
from longspan.core.cell import Cell
from longspan.runs.cell import RunPlan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted((BENCHMARKS / "recipes").glob("*.toml"))


def cells_of(file: Path) -> list[Cell]:
    return [
        Cell(task, mechanism, part.pattern, part.protocol, part.tier, 0, part.overrides)
        for part in read_matrix(file)
        for task in part.tasks
        for mechanism in part.mechanisms
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_candidate_is_a_cell_with_changes_of_its_own(file):
    cells = cells_of(file)
    assert {cell.task for cell in cells} == {file.stem}
    assert len({tuple(sorted(cell.overrides.items())) for cell in cells}) == len(cells) > 2
    for cell in cells:
        plan = RunPlan.of(cell)
        assert plan.protocol != plan.task.protocol(cell.protocol, cell.tier)


def test_there_are_candidates():
    assert {file.stem for file in FILES} == {"image", "pathfinder"}


def test_the_noncausal_board_is_twelve_mechanisms_and_none_on_two_tasks_of_each_paper():
    plans = [RunPlan.of(cell) for cell in cells_of(BENCHMARKS / "boards" / "noncausal.toml")]
    tasks = {plan.task.name for plan in plans}
    assert tasks & set(suites.get("lra4").tasks) == {"listops"}
    assert len(tasks & set(suites.get("cab").tasks)) == 2
    assert len(plans) == 13 * len(tasks)
    assert all(plan.protocol == plan.task.protocol("longspan", plan.cell.tier) for plan in plans)
