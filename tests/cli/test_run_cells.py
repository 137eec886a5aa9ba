"""A command that runs thousands of cells keeps only what it shows of each card at the end, and keeps it on disk."""

import errno
import gc
import io
import itertools
import pickle
import statistics
import tracemalloc

import pytest

from longspan.cli import tables
from longspan.cli.run_cells import run_cells
from longspan.cli.spool import Spool
from longspan.core.cell import Cell
from longspan.launchers.base import Outcome
from longspan.launchers.matrix import noted
from tests.results.factory import make_card


class AtOnce:
    """A launcher whose cells finish as soon as they are taken."""

    def run(self, take):
        while (cell := take(None)) is not None:
            pickle.dumps(cell)  # as when it is sent to another process
            yield cell, Outcome(make_card(cell.mechanism, seed=cell.seed))


def test_of_a_card_only_what_is_shown_is_kept(tmp_path):
    cells = [Cell("listops", "softmax", seed=seed) for seed in range(3)]
    waiting = iter(cells)
    with noted(tmp_path, "local", cells) as journal:
        ran = run_cells(AtOnce(), lambda left: next(waiting, None), cells, journal)
    assert [card["seed"] for card in ran.cards] == [0, 1, 2]
    assert not {"curve", "environment", "settings", "rules", "metrics"} & ran.cards[0].keys()
    assert tables.cards_table(ran.cards).row_count == 3


def test_a_cell_that_has_ended_leaves_nothing_in_memory(tmp_path, capsys):
    cells, held = [Cell("listops", "softmax", seed=seed) for seed in range(1000)], []
    waiting = iter(cells)

    def look(cell, outcome):
        if cell.seed % 100 == 99:
            capsys.readouterr()  # capsys stores the output in memory
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    with noted(tmp_path, "local", cells) as journal:
        gc.freeze()  # else each collection scans every object of this process
        tracemalloc.start()
        try:
            run_cells(AtOnce(), lambda left: next(waiting, None), cells, journal, ended=look)
        finally:
            tracemalloc.stop()
            gc.unfreeze()
    growth = [after - before for before, after in itertools.pairwise(held)]
    assert statistics.median(growth) < 8 * 100  # less than a machine word per cell; the median hides other noise


class Full(io.BytesIO):
    """A disk with room for `room` bytes."""

    room = 250

    def write(self, content):
        fits = content[: max(0, self.room - self.tell())]
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fits)


@pytest.mark.parametrize("room", [0, 1, 250, 10**6])
def test_what_a_full_disk_does_not_take_is_kept_all_the_same(room, monkeypatch):
    monkeypatch.setattr("longspan.cli.spool.tempfile.TemporaryFile", lambda **how: Full())
    monkeypatch.setattr(Full, "room", room)
    spool, values = Spool(), [{"number": number, "text": "\n" * number} for number in range(30)]
    for value in values:
        spool.append(value)
        assert list(spool)[-1] == value
    assert list(spool) == values
    assert len(spool) == 30


def test_without_a_place_for_temporary_files_values_are_kept_in_memory(monkeypatch):
    def refuse(**how):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("longspan.cli.spool.tempfile.TemporaryFile", refuse)
    spool = Spool()
    spool.append("kept")
    assert list(spool) == ["kept"]
