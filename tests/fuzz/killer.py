"""Kill this process at a chosen event: the k-th training step, or in the middle of the k-th write of a checkpoint.

    arm(KillPlan("checkpoint", nth=3, torn=100))      # dies when the fourth file opened for a checkpoint has 100 bytes

The interpreter's audit events and torch's global hooks tell what happens, so nothing of the package is patched. A plan
in the environment arms every process of a tree (through `sitecustomize`); the one that strikes kills the whole tree.
"""

import json
import os
import resource
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PLAN, ROOT = "KILL_PLAN", "KILL_ROOT"  # environment variables
PHASES = ("training", "evaluation", "checkpoint", "card", "dataset", "measurement")
TORCH = ("training", "evaluation")
CHANGES = {"open": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "os.chmod": 0}  # the path argument
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class KillPlan:
    """Which event of which phase. With `torn` only files opened for writing count, and that many bytes are written."""

    phase: str
    nth: int
    torn: int | None = None
    signal: int = signal.SIGKILL


def arm(plan: KillPlan | None = None) -> Counter[str]:
    """Watch all events from now on and kill as planned; without a plan they are only counted."""
    counts: Counter[str] = Counter()
    struck = False

    def happened(phase: str) -> None:
        nonlocal struck
        counts[phase] += 1
        wanted = None if plan is None else plan.phase if plan.torn is None else f"{plan.phase} file"
        if plan is not None and not struck and phase == wanted and counts[phase] > plan.nth:
            struck = True
            strike(plan)

    def audit(event: str, details: tuple[Any, ...]) -> None:
        if event not in CHANGES or (event == "open" and not (details[2] or 0) & WRITING):
            return
        if (phase := phase_of(details[CHANGES[event]])) is not None:
            happened(phase)
            if event == "open":
                happened(f"{phase} file")

    sys.addaudithook(audit)
    if plan is None or plan.phase in TORCH:
        _watch_torch(happened)
    return counts


def _watch_torch(happened: Any) -> None:
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def forward(module: Any, inputs: Any) -> None:
        if not module.training:
            happened("evaluation")

    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: happened("training"))
    register_module_forward_pre_hook(forward)


def phase_of(path: Any) -> str | None:
    """The phase to which a change of a file or folder belongs, by the layout of `out`."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    parts = Path(os.path.abspath(os.fsdecode(path))).parts
    if "out" not in parts:
        return None
    inside = parts[parts.index("out") + 1 :]
    if inside[:1] == ("data",):
        return "dataset"
    if inside[:2] == ("cards", "measurements") or any(part.startswith("measure-") for part in inside):
        return "measurement"
    if inside[:1] not in (("cards",), ("runs",)):
        return None
    return "checkpoint" if "checkpoint-" in inside[-1] else "card"  # or a file that lies beside the card


def strike(plan: KillPlan) -> None:
    if plan.torn is not None:
        _die_with_the_root()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (plan.torn, plan.torn))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills at the first byte beyond the limit
    elif plan.signal == signal.SIGKILL:
        _kill_tree()
    else:
        os.kill(root(), plan.signal)


def root() -> int:
    """The first process of the tree."""
    return int(os.environ[ROOT])


def _kill_tree() -> None:
    os.killpg(root(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # in case it has a process group of its own


def _die_with_the_root() -> None:
    """Fork a process that waits for this one to die and then kills the tree at once."""
    read, write = os.pipe()
    if os.fork():
        os.close(read)
        return
    try:
        os.setsid()
        os.close(write)
        os.read(read, 1)  # returns when the last writer is gone
        os.killpg(root(), signal.SIGKILL)
    finally:  # even if the tree has already ended; this copy of the command must do nothing else
        os._exit(0)


def in_environment(plan: KillPlan | None) -> dict[str, str]:
    return {} if plan is None else {PLAN: json.dumps(asdict(plan))}


def arm_as_the_environment_says() -> None:
    """For `sitecustomize`: every process of the tree has the plan, and the first is its root."""
    os.environ.setdefault(ROOT, str(os.getpid()))
    if plan := os.environ.get(PLAN):
        arm(KillPlan(**json.loads(plan)))
