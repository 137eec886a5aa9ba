"""A lease has one holder across machines: it expires soon after its holder, survives wrong clocks, is never shared."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from longspan.core import lease, lock
from longspan.core.lease import LeaseLost, Watch
from longspan.core.lock import Busy, only_one


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Frequent heartbeats and a short timeout."""
    monkeypatch.setattr(lease, "BEAT", 0.02)
    monkeypatch.setattr(lease, "PATIENCE", 0.4)
    monkeypatch.setattr(lock, "POLL_AFAR", 0.02)


def elsewhere(path, beat=0, pid=77, token="f" * 32):
    """Write the lease of a process on another machine."""
    who = f'{{"host": "node7", "machine": "another", "pid": {pid}}}'
    path.write_text(f"{token} {beat:012d}\n{who}\n")


def wait_patiently(watch):
    """Wait until the holder's heartbeat has timed out."""
    while not watch.look(alone_here=True):
        time.sleep(0.01)


def test_the_lease_of_another_machine_keeps_others_out_while_it_gives_signs_of_life(tmp_path, capfd):
    path, stop = tmp_path / ".lock.4.lease", threading.Event()
    elsewhere(path)
    with pytest.raises(Busy) as busy, only_one(tmp_path / "lock", "it", wait=False):
        pass
    assert busy.value.holder == "Process 77 on node7"
    entered = []

    def wait():
        with only_one(tmp_path / "lock", "the run"):
            entered.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    for beat in range(1, 40):
        elsewhere(path, beat)
        time.sleep(0.025)
    assert not entered
    assert not stop.is_set()
    waiting.join(timeout=30)
    assert entered, "a dead holder is relieved"
    assert "Process 77 on node7 is busy with the run; waiting for it." in capfd.readouterr().err
    assert not list(tmp_path.glob(".lock.*"))


@pytest.mark.parametrize("skew", [-86400, 86400])
def test_a_wrong_clock_neither_relieves_a_living_holder_nor_keeps_a_dead_one(tmp_path, monkeypatch, skew):
    """Neither this machine's clock nor the file times set by another machine matter."""
    path = tmp_path / ".lock.1.lease"
    elsewhere(path)
    now = time.time()
    os.utime(path, (now, now))
    monkeypatch.setattr(time, "time", lambda: now + skew)
    with pytest.raises(Busy), only_one(tmp_path / "lock", "it", wait=False):
        pass
    with only_one(tmp_path / "lock", "it") as held:
        held.check()


def test_what_has_not_been_renewed_for_hours_is_taken_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE", 1e9)
    path = tmp_path / ".lock.1.lease"
    elsewhere(path)
    os.utime(path, (time.time() - 7200,) * 2)
    with only_one(tmp_path / "lock", "it", wait=False) as held:
        held.check()


def test_a_slow_holder_finds_that_another_has_taken_over(tmp_path):
    with only_one(tmp_path / "lock", "it") as held:
        held.check()
        elsewhere(tmp_path / ".lock.2.lease")
        with pytest.raises(LeaseLost, match=r"taken over \(Process 77 on node7\)"):
            held.check()
    assert [path.name for path in tmp_path.glob(".lock.*")] == [".lock.2.lease"]


def test_of_many_that_take_over_at_once_one_does(tmp_path):
    elsewhere(tmp_path / ".lock.9.lease")
    watches = [Watch(tmp_path / "lock") for _ in range(16)]
    for watch in watches:
        wait_patiently(watch)
    together, taken = threading.Barrier(len(watches)), []

    def take(watch):
        free = watch.look(alone_here=True)
        together.wait()
        if free and (got := watch.take(locked=True)) is not None:
            taken.append(got)

    threads = [threading.Thread(target=take, args=(watch,)) for watch in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = taken
    one.check()
    assert [path.name for path in tmp_path.glob(".lock.*")] == [".lock.10.lease"]


def test_a_sign_of_life_in_the_last_moment_keeps_the_lease(tmp_path):
    elsewhere(tmp_path / ".lock.1.lease")
    watch = Watch(tmp_path / "lock")
    wait_patiently(watch)
    elsewhere(tmp_path / ".lock.1.lease", beat=1)
    assert watch.take(locked=True) is None
    assert [path.name for path in tmp_path.glob(".lock.*")] == [".lock.1.lease"]


def test_one_who_was_asleep_while_all_was_cleared_away_takes_nothing(tmp_path):
    """It saw lease 1, which was then taken over, released and removed; another process now holds a new lease 1."""
    elsewhere(tmp_path / ".lock.1.lease")
    watch = Watch(tmp_path / "lock")
    watch.look(alone_here=True)
    (tmp_path / ".lock.1.lease").unlink()
    with only_one(tmp_path / "lock", "it") as held:
        assert watch.take(locked=True) is None
        held.check()


HOLDER = """
import sys, time
from pathlib import Path
from longspan.core import lease
from longspan.core.lock import only_one
with only_one(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_of_this_machine_is_relieved_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "PATIENCE", 1e9)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (left,) = tmp_path.glob(".lock.*")
        assert socket.gethostname().encode() in left.read_bytes()
        with pytest.raises(Busy), only_one(tmp_path / "lock", "it", wait=False):
            pass
        process.kill()
        process.wait()
    with only_one(tmp_path / "lock", "it", wait=False) as held:
        held.check()


def test_without_kernel_locks_the_lease_alone_keeps_others_out(tmp_path, monkeypatch):
    """As on file systems without file locks."""
    monkeypatch.setattr(lock, "_try", lambda handle: None)
    with only_one(tmp_path / "lock", "it") as held:
        with pytest.raises(Busy), only_one(tmp_path / "lock", "it", wait=False):
            pass
        time.sleep(0.1)
        held.check()
    with only_one(tmp_path / "lock", "it", wait=False):
        pass


def test_a_holder_without_the_kernels_lock_is_not_taken_for_dead(tmp_path, monkeypatch):
    """It took over from a slow process that still held the kernel's lock then and has died since."""
    monkeypatch.setattr(lease, "PATIENCE", 1e9)
    one = Watch(tmp_path / "lock").take(locked=False)
    assert one is not None
    with (
        one.kept(),
        pytest.raises(Busy),
        only_one(tmp_path / "lock", "it", wait=False),
    ):
        pass
    with only_one(tmp_path / "lock", "it", wait=False):
        pass


def test_a_store_that_cannot_be_reached_for_a_while_costs_no_lease(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lease, "PATIENCE", 1.0)
    watch = Watch(tmp_path / "lock")
    with only_one(tmp_path / "lock", "it") as held:
        assert not watch.look(alone_here=False)
        with monkeypatch.context() as away:
            away.setattr(lease, "_write", unreachable)
            time.sleep(0.3)
            before = held.path.read_bytes()
        for _ in range(100):
            time.sleep(0.02)
            assert not watch.look(alone_here=False)
        assert held.path.read_bytes() != before, "signs of life come again"
        held.check()


@pytest.mark.parametrize("pause", [1.0, 1000.0])
def test_one_who_was_stopped_himself_or_could_not_see_the_store_is_not_impatient(tmp_path, monkeypatch, pause):
    """When everything resumes after a pause, a holder whose next heartbeat comes in time keeps its lease."""
    now = [50.0]
    monkeypatch.setattr(lease, "BEAT", 15.0)
    monkeypatch.setattr(lease, "PATIENCE", 150.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(tmp_path / "lock")
    elsewhere(tmp_path / ".lock.1.lease")
    assert not watch.look(alone_here=True)
    now[0] += pause
    for _ in range(6):
        assert not watch.look(alone_here=True)
        now[0] += 2.0
    elsewhere(tmp_path / ".lock.1.lease", beat=1)
    looks = 0
    while not watch.look(alone_here=True):
        now[0] += 2.0
        looks += 1
    assert looks == 76


def test_one_who_slept_while_all_was_cleared_away_does_not_write_over_the_lease_of_another(tmp_path):
    with only_one(tmp_path / "lock", "it") as held:
        held.path.unlink()
        elsewhere(held.path)
        theirs = held.path.read_bytes()
        time.sleep(0.2)  # ten heartbeats
        assert held.path.read_bytes() == theirs
        with pytest.raises(LeaseLost, match=r"taken over \(Process 77 on node7\)"):
            held.check()
    assert held.path.read_bytes() == theirs


def test_signs_of_life_never_bring_a_removed_folder_back(tmp_path):
    folder = tmp_path / "run"
    with only_one(folder / "lock", "it"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        time.sleep(0.1)
    assert not folder.exists()
