"""A lock is held by one process at a time, outlives no one, and says who holds it."""

import os
import shutil
import subprocess
import sys

import pytest

from longspan.core.lock import Busy, only_one

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


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
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
