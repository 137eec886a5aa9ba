"""A command that runs thousands of cells keeps of each card what it shows in the end, and no more."""

from longspan.cli import tables
from longspan.cli.run_cells import run_cells
from longspan.core.cell import Cell
from longspan.launchers.base import Outcome
from longspan.launchers.matrix import noted
from tests.results.factory import make_card


class AtOnce:
    """A launcher whose cells are done when they are taken."""

    def run(self, take):
        while (cell := take(None)) is not None:
            yield cell, Outcome(make_card(cell.mechanism, seed=cell.seed))


def test_of_a_card_only_what_is_shown_is_kept(tmp_path):
    cells = [Cell("listops", "softmax", seed=seed) for seed in range(3)]
    waiting = iter(cells)
    with noted(tmp_path, "local", cells) as journal:
        ran = run_cells(AtOnce(), lambda left: next(waiting, None), cells, journal)
    assert [card["seed"] for card in ran.cards] == [0, 1, 2]
    assert not {"curve", "environment", "settings", "rules", "metrics"} & ran.cards[0].keys()
    assert tables.cards_table(ran.cards).row_count == 3
