"""One worker process as its supervisor sees it: how it is sent requests, watched, stopped and ended."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from longspan.launchers import tree
from longspan.launchers.channel import Channel, Closed, Garbled
from longspan.launchers.limits import spell_bytes, spell_seconds

TICK = 0.2  # seconds between two checks of the clock and the memory
GRACE = 30.0  # seconds for a worker to save its state; schedulers give as much
SENT = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")  # from others, as opposed to its own faults
# Slurm announces the end of a job's time to all its processes, by a signal that would end a worker before it has saved
# its state; the supervisor receives it too, and has the worker save.
_PROGRAM = """
import json, signal, sys
if hasattr(signal, "SIGUSR2"): signal.signal(signal.SIGUSR2, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv.pop())
from longspan.launchers.worker import main
main()
"""


class Died(Exception):
    """The worker did not answer; `reason` says what became of it, `resumable` whether its run may resume later.

    One that was `killed` may have been ended from outside: by the system when memory ran out, by a scheduler, or by a
    person.
    """

    def __init__(self, reason: str, *, resumable: bool = False, killed: bool = False):
        super().__init__(reason)
        self.reason, self.resumable, self.killed = reason, resumable, killed


class Worker:
    """A fresh interpreter in a session of its own, with the terminal, the environment and the paths of this one."""

    def __init__(self, memory_bytes: int | None, adopted: tree.Adopted, environment: Mapping[str, str] | None = None):
        self.memory_bytes, self.adopted = memory_bytes, adopted
        self.stopped_by: int | None = None
        self.deadline: float | None = None  # of the clock `time.monotonic`: then the worker saves its state and stops
        self.out_of_time = False
        self._stopped_at = 0.0
        ours, theirs = socket.socketpair()
        with theirs:
            words = [str(os.getpid()), str(theirs.fileno()), str(memory_bytes or 0), json.dumps(sys.path)]
            command = [sys.executable, "-c", _PROGRAM, *words]
            own = os.environ | dict(environment or {})
            self.process = adopted.start(command, pass_fds=[theirs.fileno()], start_new_session=True, env=own)
        self.channel = Channel(ours)

    def send(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(Closed):  # `receive` finds out why
            self.channel.send(request)

    def receive(self, seconds: float | None) -> dict[str, Any]:
        """The answer to the last request; raises Died if it does not come in this time and within the memory limit."""
        begun = time.monotonic()
        while True:
            try:
                if (message := self.channel.receive(TICK)) is not None:
                    return message
                if self.process.poll() is not None:  # a child of the worker may hold the channel open
                    raise Closed
            except Closed:
                raise self._post_mortem() from None
            except Garbled as error:
                self.end()
                raise Died(f"its process sent no message but {error}") from None
            self._look(begun, seconds)

    def ask(self, request: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        self.send(request)
        return self.receive(seconds)

    def stop(self, number: int) -> None:
        """Pass a signal on, as a terminal would: to the worker and its processes. A second one ends it at once."""
        if self.stopped_by is not None:
            self._kill()
            return
        self.stopped_by, self._stopped_at = number, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def save(self) -> None:
        """Stop the worker and return when it has answered, with its state saved, or GRACE has passed."""
        self.stop(signal.SIGTERM)
        select.select([self.channel.end], [], [], GRACE)

    def pause(self) -> None:
        tree.send(self._everyone(), signal.SIGSTOP)

    def go_on(self) -> None:
        tree.send(self._everyone(), signal.SIGCONT)

    def end(self) -> None:
        """Kill the worker and all processes below it."""
        self._kill()
        self.process.wait()
        self.channel.close()

    def _kill(self) -> None:
        tree.end(self.process.pid, self.adopted)

    def _everyone(self) -> set[int]:
        return tree.descendants({self.process.pid} | self.adopted.now())

    def _look(self, begun: float, seconds: float | None) -> None:
        """Stop a worker whose time is up, and end one that is over a limit."""
        now = time.monotonic()
        if self.deadline is not None and now > self.deadline and self.stopped_by is None:
            self.out_of_time = True
            self.stop(signal.SIGTERM)
        if self.stopped_by is not None and now - self._stopped_at > GRACE:
            self._kill()
        elif seconds is not None and now - begun > seconds:
            self.end()
            limit = f"it took longer than the time limit of {spell_seconds(seconds)}"
            raise Died(f"{limit}; with a longer --time-limit the same command goes on", resumable=True)
        elif self.memory_bytes and (used := tree.memory_bytes(self._everyone(), self.memory_bytes)) > self.memory_bytes:
            self.end()
            limit = f"its processes used {spell_bytes(used)}, over the memory limit of {spell_bytes(self.memory_bytes)}"
            raise Died(f"{limit}; choose a smaller recipe.batch_size or a larger --memory-limit")

    def _post_mortem(self) -> Died:
        """Why the channel closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2.0)
        code = self.process.poll()
        self.end()
        if code is None:
            return Died("its process closed the channel to its supervisor")
        if code >= 0:
            return Died(f"its process ended with exit code {code}")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return Died(f"its process was ended by {name}{memory}", killed=name in SENT)
