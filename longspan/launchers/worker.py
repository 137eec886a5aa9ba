"""The process that runs cells for a supervisor, one request after another, until the supervisor is gone.

Whatever a plug-in does to this interpreter ends with it: a patched function, another default dtype, `os._exit`.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from longspan.core import signals
from longspan.core.cell import Cell
from longspan.core.errors import Crowded, StorageError, explain
from longspan.core.parent import die_with_parent
from longspan.core.printable import make_streams_plain
from longspan.launchers.channel import Channel, Closed


def main() -> None:
    """Called as `worker.main()` with the parent's process id, the socket and the memory limit on the command line."""
    parent, handle, memory_bytes = map(int, sys.argv[1:4])
    die_with_parent(parent)
    os.set_inheritable(handle, False)
    _be_the_one_to_die()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)  # Ray blocks Ctrl-C, also for children
    make_streams_plain()
    channel = Channel(socket.socket(fileno=handle), trusted=True)
    with contextlib.suppress(Closed):
        while (request := channel.receive()) is not None:
            channel.send(answer(request, memory_bytes))
    os._exit(0)  # whatever threads or exit handlers a plug-in has left


def answer(request: dict[str, Any], memory_bytes: int = 0) -> dict[str, Any]:
    """Handle a request; a failure is a sentence and an exit code."""
    try:
        with signals.raised():
            return _DO[request["do"]](request, memory_bytes)
    except signals.Stopped as stop:
        return {"stopped": stop.number}
    except BaseException as error:  # a plug-in may raise anything at all
        if request.get("debug"):
            traceback.print_exc()
        sentence, code = explain(error)
        kinds = {"storage": isinstance(error, (StorageError, OSError)), "crowded": isinstance(error, Crowded)}
        return {"error": sentence, "code": code, **kinds}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _plan(request: dict[str, Any], memory_bytes: int) -> dict[str, Any]:
    """Resolve every name and setting, which imports plug-ins; wrong ones are refused before anything is trained."""
    from longspan import runs
    from longspan.core.environment import choose_device, gpus

    device = choose_device(request["how"]["device"])
    if device == "cpu":
        _refuse_what_does_not_fit(memory_bytes)
    for cell in request["cells"]:
        runs.RunPlan.of(_cell(cell))
    return {"planned": len(request["cells"]), "gpus": gpus() if device == "cuda" else []}


def _run(request: dict[str, Any], memory_bytes: int) -> dict[str, Any]:
    from longspan import runs
    from longspan.core.environment import choose_device
    from longspan.efficiency.memory import release

    try:
        return {"card": runs.run(_cell(request["cell"]), **request["how"])}
    finally:
        release(choose_device(request["how"]["device"]))  # memory that torch caches is of use to others on the device


def _fail(request: dict[str, Any], memory_bytes: int) -> dict[str, Any]:
    """Write the card of a cell whose own process is dead; its plug-in is not imported."""
    from longspan.runs.failed import write_card

    how = {name: value for name, value in request["how"].items() if name in ("out", "device", "devices", "real")}
    sentence = write_card(_cell(request["cell"]), request["reason"], keep=request["keep"], **how)
    return {"error": sentence, "code": 4}


_DO = {"plan": _plan, "run": _run, "fail": _fail}


def _be_the_one_to_die() -> None:
    """If the system runs out of memory, it should end this process rather than another."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _refuse_what_does_not_fit(memory_bytes: int) -> None:
    """An allocation beyond the limit raises, so that the cell has a card that says so. CUDA reserves far more than it
    uses, so that this works on a CPU only."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    if memory_bytes and sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or memory_bytes < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, hard))


def _cell(words: dict[str, Any]) -> Cell:
    """A cell from a message, which has no tuples."""
    words["overrides"] = {name: _tuples(value) for name, value in words["overrides"].items()}
    return Cell(**words)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
