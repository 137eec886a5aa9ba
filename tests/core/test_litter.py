"""What a killed process leaves is removed or restored by the next one; what a live one writes is never touched."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from longspan.core import atomic, litter
from longspan.core.litter import sweep

ROOT = Path(__file__).parents[2]


def start(code, folder):
    """Start a process that reports when it is in the middle of its write, and waits there."""
    whole = "import os, sys, time\nfrom pathlib import Path\nfrom longspan.core import atomic, litter\n"
    whole += f"here = Path({str(folder)!r})\ndef pause():\n    print('now', flush=True)\n    time.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", whole + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


FILE = """
    with atomic.temporary_beside(here / "card.json") as temporary:
        temporary.write_text("half")
        pause()
"""
FOLDER = """
    with atomic.folder_beside(here / "data") as temporary:
        (temporary / "array").write_text("half")
        pause()
"""
BETWEEN_RENAMES = """
    (here / "new").mkdir()
    (here / "new" / "array").write_text("new")
    replace = os.replace
    def slowly(one, other):
        if Path(one) == here / "new":
            pause()
        replace(one, other)
    os.replace = slowly
    atomic.replace_folder(here / "new", here / "data")
"""
COMPANIONS = """
    with litter.announced(here / "card.json"):
        (here / "card.predictions.npz").write_text("predictions")
        pause()
"""


@pytest.mark.parametrize("code", [FILE, FOLDER, COMPANIONS], ids=["file", "folder", "files of a card"])
def test_a_killed_write_is_swept_and_a_live_one_is_not(tmp_path, code):
    (tmp_path / "kept.npz").write_text("mine")
    process = start(code, tmp_path)
    try:
        during = sorted(os.listdir(tmp_path))
        assert len(during) >= 2
        sweep(tmp_path)
        assert sorted(os.listdir(tmp_path)) == during
    finally:
        kill(process)
    assert sorted(os.listdir(tmp_path)) == during
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_a_replacement_killed_between_its_renames_loses_nothing(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "array").write_text("old")
    kill(start(BETWEEN_RENAMES, tmp_path))
    assert not (tmp_path / "data").exists()
    sweep(tmp_path)
    assert (tmp_path / "data" / "array").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["data", "new"]


def test_a_replacement_killed_after_its_renames_keeps_the_new_one(tmp_path):
    old = tmp_path / ".data.abcd1234.old" / "content"
    old.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["data"]


def test_files_of_a_card_that_was_written_stay(tmp_path):
    with litter.announced(tmp_path / "card.json"):
        (tmp_path / "card.log.csv").write_text("log")
        atomic.write_text(tmp_path / "card.json", "{}")
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["card.json", "card.log.csv"]


def test_files_of_a_card_that_could_not_be_written_are_removed_at_once(tmp_path):
    def fail():
        with litter.announced(tmp_path / "card.json"):
            (tmp_path / "card.log.csv").write_text("log")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert os.listdir(tmp_path) == []


def test_nothing_else_is_swept(tmp_path):
    """Resumable downloads, hidden files of other programs, notes that name something other than a card."""
    names = ["x.tar.gz.part", ".x.busy", ".hidden", ".part", "a.part", ".a.part", ".verified.json"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".a.abcd1234.adding").write_text("../elsewhere.json")
    sweep(tmp_path)
    sweep(tmp_path / "absent")
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_another_machine_is_writing_stays_for_an_hour(tmp_path):
    """Its locks may be invisible here, as on a network disk without locks across machines."""
    theirs = tmp_path / ".card.json.m00000000.abcd1234.part"
    theirs.write_text("half a card")
    sweep(tmp_path)
    assert theirs.exists()
    os.utime(theirs, (theirs.stat().st_mtime - 7200,) * 2)
    sweep(tmp_path)
    assert not theirs.exists()


def test_a_temporary_taken_for_litter_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    real, calls = atomic.locked, []

    def swept_first(path, **how):
        calls.append(path)
        if len(calls) == 1:
            path.unlink()
        return real(path, **how)

    monkeypatch.setattr(atomic, "locked", swept_first)
    atomic.write_text(tmp_path / "card.json", "whole")
    assert (tmp_path / "card.json").read_text() == "whole"
    assert len(calls) == 2
    assert os.listdir(tmp_path) == ["card.json"]
