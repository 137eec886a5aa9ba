"""A worker that hangs, dies, eats memory or talks nonsense is ended with all its processes, and the reason is given."""

import signal
import time
from pathlib import Path

import pytest

from longspan.core.parent import adopt_orphans
from longspan.launchers import process
from longspan.launchers.process import Died, Worker
from longspan.launchers.tree import Adopted

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits are watched in /proc")


@pytest.fixture
def worker(monkeypatch):
    """Starts a worker that runs these lines instead of the real program."""
    workers = []
    adopt_orphans()

    def start(program, memory_bytes=None):
        monkeypatch.setattr(process, "_PROGRAM", f"import os, signal, socket, sys, time\n{program}")
        workers.append(Worker(memory_bytes, Adopted()))
        return workers[-1]

    yield start
    for one in workers:
        one.end()
    adopt_orphans(False)


TALK = "socket.socket(fileno=int(sys.argv[2])).sendall(%r); time.sleep(60)"


@pytest.mark.parametrize(
    "program, reason",
    [
        ("os._exit(3)", "its process ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, as the system does when memory runs out"),
        ("os.fork() and os._exit(3); time.sleep(60)", "its process ended with exit code 3"),
        ("os.close(int(sys.argv[2])); time.sleep(60)", "closed the channel to its supervisor"),
        ("time.sleep(60)", "longer than the time limit of 1 s; with a longer --time-limit the same command goes on"),
        ("x = bytearray(2**27); time.sleep(60)", "over the memory limit of 64 MiB"),
        ("os.fork(); os.fork(); x = bytearray(2**25); time.sleep(60)", "over the memory limit of 64 MiB"),
        (TALK % b"hello\n", "sent no message but no JSON"),
        (TALK % b"[1]\n", "sent no message but no JSON object"),
        (TALK % b'{"card": NaN}\n', "sent no message but no JSON"),
        (TALK % (b"[" * 100_000 + b"\n"), "sent no message but no JSON"),
    ],
)
def test_what_became_of_a_worker_is_said(worker, program, reason):
    limit = 1.0 if "--time-limit" in reason else 60.0
    with pytest.raises(Died) as died:
        worker(program, 2**26).ask({"do": "run"}, limit)
    assert reason in died.value.reason
    assert died.value.killed == ("SIGKILL" in reason)  # SIGKILL may be retried


@pytest.mark.parametrize("number, killed", [(signal.SIGKILL, True), (signal.SIGUSR2, True), (signal.SIGSEGV, False)])
def test_a_worker_that_others_ended_is_told_from_one_that_broke(worker, number, killed):
    with pytest.raises(Died) as died:
        worker(f"os.kill(os.getpid(), {int(number)})").ask({"do": "run"}, 60.0)
    assert died.value.killed == killed


def test_a_message_without_an_end_is_bounded(worker, monkeypatch):
    monkeypatch.setattr("longspan.launchers.channel.MAX_BYTES", 2**16)
    endless = worker("s = socket.socket(fileno=int(sys.argv[2]))\nwhile True: s.sendall(b'x' * 2**12)")
    with pytest.raises(Died, match="more than 65536 bytes without an end"):
        endless.receive(60.0)


def test_processes_that_leave_the_session_are_ended_too(worker, tmp_path):
    leave = "os.fork() and os._exit(0)\n    os.setsid()\n    os.fork() and os._exit(0)\n    os.environ.clear()"
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    one = worker(f"if os.fork() == 0:\n    {leave}\n    {note}\n    time.sleep(60)\ntime.sleep(60)")
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    one.end()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_signal_reaches_the_worker_and_a_second_one_ends_it(worker):
    deaf = "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    one = worker(deaf + (TALK % b"{}\n").replace("; time", "\nwhile True: time"))
    assert one.receive(60.0) == {}
    one.stop(signal.SIGTERM)
    one.stop(signal.SIGTERM)
    assert one.process.wait(timeout=30) == -signal.SIGKILL


def test_a_worker_whose_time_is_up_is_asked_to_stop_and_may_still_answer(worker):
    answer = "signal.signal(signal.SIGTERM, lambda *_: end.sendall(b'{\"stopped\": 15}\\n'))"
    talk = f"end = socket.socket(fileno=int(sys.argv[2]))\n{answer}\nend.sendall(b'{{}}\\n')"
    one = worker(f"{talk}\nwhile True: time.sleep(60)")
    assert one.receive(60.0) == {}
    assert not one.out_of_time
    one.deadline = 0.0
    assert one.receive(60.0) == {"stopped": 15}
    assert (one.out_of_time, one.stopped_by) == (True, signal.SIGTERM)


def test_a_paused_worker_does_nothing_until_it_goes_on(worker, tmp_path):
    one = worker(f"while True: open({str(tmp_path / 'ticks')!r}, 'a').write('x'); time.sleep(0.001)")
    deadline = time.monotonic() + 30
    while not (tmp_path / "ticks").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    one.pause()
    while state_of(one) != "T":
        assert time.monotonic() < deadline
    one.go_on()
    while state_of(one) == "T":
        assert time.monotonic() < deadline


def state_of(worker):
    return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_signal_that_slurm_sends_to_all_processes_of_a_job_does_not_end_a_worker_before_it_has_saved():
    one = Worker(None, Adopted())
    try:
        assert "error" in one.ask({"do": "nothing"}, 60.0)  # it has started
        one.process.send_signal(signal.SIGUSR2)
        assert "error" in one.ask({"do": "nothing"}, 60.0)
    finally:
        one.end()


def test_a_worker_hears_ctrl_c_though_its_parent_does_not():
    """Ray's processes block the signal, and their children inherit that."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        one = Worker(None, Adopted())
        try:
            assert "error" in one.ask({"do": "nothing"}, 60.0)  # it has started
            status = Path(f"/proc/{one.process.pid}/status").read_text()
        finally:
            one.end()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    assert int(blocked, 16) & (1 << (signal.SIGINT - 1)) == 0
