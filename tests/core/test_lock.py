"""A lock is held by one process at a time, is freed when that process dies, and names its holder."""

import os
import shutil
import subprocess
import sys

import pytest

from longspan.core import lease, lock
from longspan.core.lock import Busy, _locked_here, only_one

HOLDER = """
import os, sys, time
from pathlib import Path
from longspan.core.lock import only_one
with only_one(Path(sys.argv[1]), "it"):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # by the child, which has let go of the lock by then
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_one_who_does_not_wait_is_told_who_holds_it(tmp_path):
    with only_one(tmp_path / "lock", "it"):
        with pytest.raises(Busy) as busy, only_one(tmp_path / "lock", "it", wait=False):
            pass
        assert busy.value.holder == f"Process {os.getpid()}"
    with only_one(tmp_path / "lock", "it", wait=False):
        pass


def test_between_lock_and_lease_no_other_process_comes(tmp_path):
    """A process that has just locked the file has no lease yet; otherwise each would hold one of the two."""
    with _locked_here(tmp_path / "lock"), pytest.raises(Busy), only_one(tmp_path / "lock", "it", wait=False):
        pass


def test_a_folder_that_its_last_holder_removes_is_made_again(tmp_path, monkeypatch):
    """Removed while another process acquires it: before the file is opened, and before the lease is created."""
    path, seen = tmp_path / "folder" / "lock", []
    for place, name in ((lock, "_locked_here"), (lease, "_create")):
        original = getattr(place, name)

        def first_remove(*args, original=original, name=name):
            if name not in seen:
                seen.append(name)
                shutil.rmtree(path.parent)
            return original(*args)

        monkeypatch.setattr(place, name, first_remove)
    with only_one(path, "it"):
        assert path.exists()
    assert seen == ["_locked_here", "_create"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_cannot_be_made_is_an_error_and_not_waited_for(tmp_path, below):
    """A link to a missing disk, or a file in its place."""
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for place in ("out", "file"):
        with pytest.raises((FileExistsError, NotADirectoryError)), only_one(tmp_path / place / below / "lock", "it"):
            pass


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is alive
        with only_one(tmp_path / "lock", "it", wait=False):
            pass
    finally:
        os.kill(child, 9)
        process.stdout.close()


def test_a_lock_whose_file_was_removed_by_its_holder_is_taken_anew(tmp_path):
    path = tmp_path / "folder" / "lock"
    with only_one(path, "it"):
        waiting = subprocess.Popen([sys.executable, "-c", TAKER, str(path)], stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"Process {os.getpid()} is busy with it; waiting for it.\n"
        shutil.rmtree(path.parent)
    assert waiting.wait(timeout=60) == 0
    waiting.stderr.close()


TAKER = """
import sys
from pathlib import Path
from longspan.core.lock import only_one
path = Path(sys.argv[1])
with only_one(path, "it"):
    assert path.exists()
"""


def test_of_many_who_come_and_go_one_at_a_time_is_inside(tmp_path):
    """Half of them remove the folder of the lock when they leave, as a finished dataset does."""
    start = [sys.executable, "-c", CROWD, str(tmp_path)]
    crowd = [subprocess.Popen([*start, str(seed)], stderr=subprocess.DEVNULL) for seed in range(4)]
    assert [process.wait(timeout=120) for process in crowd] == [0] * 4


CROWD = """
import os, random, shutil, sys, time
from pathlib import Path
from longspan.core.lock import only_one
place, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
for _ in range(60):
    with only_one(place / "folder" / "lock", "it"):
        os.close(os.open(place / "inside", os.O_CREAT | os.O_EXCL))  # fails where another is
        time.sleep(0.003 * chance.random())
        (place / "inside").unlink()
        if chance.random() < 0.5:
            shutil.rmtree(place / "folder", ignore_errors=True)
"""
