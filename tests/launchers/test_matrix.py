"""A running matrix can be watched from outside: every cell is in one state, and the time left adds up."""

import itertools
import json
import os
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from longspan.cli import watch
from longspan.core import pulse
from longspan.core.cell import Cell
from longspan.core.pulse import Pace, Pulse, pace_of
from longspan.launchers import matrix
from longspan.launchers.matrix import STATES, Row, noted, rows, seconds_left

CELLS = [Cell("listops", "softmax", seed=seed, overrides={"recipe.steps": 4}) for seed in range(4)]


def begin(out, cell, pace, *, held=True):
    """A run in progress, as its own process records it."""
    folder = out / "runs" / f"run-{cell.seed}"
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text(json.dumps({"cell": asdict(cell)}))
    (folder / "progress.json").write_text(json.dumps(asdict(pace)))
    if held:
        (folder / ".lock.1.lease").write_text("held")


def test_every_cell_is_queued_running_done_or_failed_with_its_reason(tmp_path):
    with noted(tmp_path, "ray", CELLS) as journal:
        assert [row.state for row in rows(tmp_path)] == ["queued"] * 4
        begin(tmp_path, CELLS[1], Pace(50, 100, 10.0))
        begin(tmp_path, CELLS[3], Pace(2, 100, 10.0), held=False)  # no process works on it
        journal.note(CELLS[0], "done", seconds=20.0)
        journal.note(CELLS[2], "failed", reason="listops softmax seed 2 failed: <out of memory>")
        found = {row.cell.seed: row for row in rows(tmp_path)}
        states = {seed: row.state for seed, row in found.items()}
        assert states == {0: "done", 1: "running", 2: "failed", 3: "queued"}
        assert (found[1].pace, found[0].seconds) == (Pace(50, 100, 10.0), 20.0)
        assert seconds_left(list(found.values())) == 25.0  # 5 s for the running cell, then 20 s for the queued one
        page = tmp_path / "progress.html"
        watch._write_page(page, list(found.values()))
        said = page.read_text()
        assert "4 cells: 1 running, 1 queued, 1 done, 1 failed; about 25 s left." in said
        assert "&lt;out of memory&gt;" in said
    assert [row.state for row in rows(tmp_path)] == ["failed", "stopped", "stopped", "done"]


def test_what_waits_for_a_dead_command_is_stopped(tmp_path, monkeypatch):
    interrupted = noted(tmp_path, "local", CELLS)
    interrupted.__enter__().note(CELLS[0], "done", seconds=1.0)
    interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert sum(row.state == "queued" for row in rows(tmp_path)) == 3  # its process is alive
    (path,) = (tmp_path / "matrices").iterdir()
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194305'))
    assert [row.state for row in rows(tmp_path)] == ["stopped"] * 3 + ["done"]


def test_half_a_line_and_strange_files_are_passed_over(tmp_path):
    with noted(tmp_path, "local", CELLS) as journal:
        journal.note(CELLS[0], "done")
        with journal.path.open("a") as file:
            file.write('{"cell": "x", "sta')
        (tmp_path / "matrices" / "0.jsonl").write_text("[]\n")
        head = json.loads(journal.path.read_text().splitlines()[0])
        strange = head | {"cells": [head["cells"][0] | {"overrides": ["steps"]}]}
        (tmp_path / "matrices" / "1.jsonl").write_text(json.dumps(strange) + "\n")
        assert [row.state for row in rows(tmp_path)] == ["queued"] * 3 + ["done"]


def test_only_the_last_journals_are_kept(tmp_path):
    for _ in range(matrix.KEPT + 3):
        with noted(tmp_path, "local", CELLS):
            pass
    assert len(list((tmp_path / "matrices").iterdir())) == matrix.KEPT


def test_off_a_terminal_there_is_a_line_for_every_change(tmp_path, capsys, monkeypatch):
    with noted(tmp_path, "local", CELLS[:2]) as journal:
        journal.note(CELLS[0], "done", seconds=1.0)
        monkeypatch.setattr(watch.time, "sleep", lambda seconds: journal.note(CELLS[1], "failed", reason="it fell"))
        watch.watch_matrix(tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "done listops · softmax · seed 0",
        "failed listops · softmax · seed 1: it fell",
        "2 cells: 1 done, 1 failed.",
    ]


def test_cells_that_differ_in_settings_are_told_apart(tmp_path, capsys, monkeypatch):
    """Under one name their states alternated, and every look printed all of them again."""
    cells = [Cell("listops", "softmax", overrides={"model.layers": layers}) for layers in (2, 4)]
    with noted(tmp_path, "local", cells) as journal:
        journal.note(cells[0], "done", seconds=1.0)
        looks = itertools.count()

        def sleep(seconds):
            if next(looks) == 2:
                journal.note(cells[1], "done", seconds=1.0)

        monkeypatch.setattr(watch.time, "sleep", sleep)
        watch.watch_matrix(tmp_path, page=tmp_path / "page.html")
    said = [f"done listops · softmax · seed 0 · model.layers={layers}" for layers in (2, 4)]
    assert capsys.readouterr().out.splitlines() == [*said, "2 cells: 2 done."]
    assert "model.layers=4" in (tmp_path / "page.html").read_text()


@given(st.lists(st.tuples(st.sampled_from(STATES), st.floats(0.1, 1e4)), max_size=30))
def test_the_time_left_is_no_less_than_that_of_any_run(drawn):
    found = [
        Row(CELLS[0], state, Pace(10, 100, rate) if state == "running" else None, seconds=rate) for state, rate in drawn
    ]
    left = seconds_left(found)
    running = [row.pace.seconds_left for row in found if row.pace]
    if left is not None:
        assert left >= max(running)
    else:
        assert not running or not any(row.state == "done" for row in found)


def test_a_run_says_how_far_it_is_at_once_and_then_every_few_seconds(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    write = Pulse(tmp_path)
    write(20, 100)
    assert pace_of(tmp_path) == Pace(20, 100, None)
    now = 101.0
    write(30, 100)
    assert pace_of(tmp_path) == Pace(20, 100, None)
    now = 110.0
    write(40, 100)
    assert pace_of(tmp_path) == Pace(40, 100, 2.0)
    assert pace_of(tmp_path).seconds_left == 30.0
    (tmp_path / "progress.json").write_text('{"step": -1, "steps": 2, "rate": null}')
    assert pace_of(tmp_path) is None
