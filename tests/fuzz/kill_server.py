"""A process that has imported torch once and forks a child for every command, which may be killed.

    python -m tests.fuzz.kill_server      # reads orders, one JSON object per line, and answers each with another

The child leads its own session, as a command in a shell does. Nothing computes before the fork.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longspan.core import lease
from tests.fuzz import killer

PATIENCE_S = lease.PATIENCE + 120  # a command that takes this long has hung; a lease torn by a kill is waited for
TINY = {"recipe.steps": 6, "recipe.evaluate_every": 2, "recipe.batch_size": 4, "recipe.evaluation_batch": 8}
TINY |= {"data.train": 24, "data.valid": 8, "data.test": 16, "model.dim": 8, "model.layers": 1, "model.mlp": 8}
LENGTHS = (8, 16, 32)
SHARDS: dict[str, dict[str, Any]] = {
    "listops": {"train": 2_500, "valid": 250, "test": 250, "longer_than": 5, "shorter_than": 60, "max_depth": 4},
    "imdb": {"train": 600, "valid": 100, "test": 100, "length": 64, "standin": True},
}


def run(mechanism: str) -> None:
    """Train and score a small network, with a checkpoint after every step."""
    import longspan
    from longspan.training import loop

    assert loop.SAVE_EVERY_SECONDS > 0
    loop.SAVE_EVERY_SECONDS = -1.0
    longspan.run("listops", mechanism, overrides=TINY, device="cpu")


def prepare(name: str) -> None:
    """Write a dataset of several shards."""
    from longspan import datasets

    dataset = datasets.get(name)
    dataset.load(dataset.Data(**SHARDS[name]))


def measure(mechanism: str) -> None:
    from longspan.efficiency.setup import Setup
    from longspan.efficiency.sweep import measure, pairs_of

    small = {"batch": 1, "heads": 2, "dim": 4, "repeats": 5, "seconds": 0.01, "warmup": 1}
    measure(pairs_of([mechanism]), Setup.usual("cpu", lengths=LENGTHS, **small), device="cpu")


COMMANDS: dict[str, Callable[[str], None]] = {"run": run, "prepare": prepare, "measure": measure}


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait, and say how the child ended."""
    counts = Path(order["cwd"]).parent / f"{Path(order['cwd']).name}.counts"
    log = counts.with_suffix(".log")
    child = os.fork()
    if child == 0:
        _in_child(order, counts, log)
    status = _wait(child, order.get("after"))
    if status:  # its children must not outlive it
        _kill_group(child)
    code = os.waitstatus_to_exitcode(status)
    told = log.read_text(errors="replace") if log.exists() else ""
    return {"code": code, "counts": json.loads(counts.read_text()) if code == 0 else {}, "log": told[-2000:]}


def _in_child(order: dict[str, Any], counts: Path, log: Path) -> None:
    code = 70
    try:
        os.setsid()
        os.environ[killer.ROOT] = str(os.getpid())
        os.chdir(order["cwd"])
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        plan = order.get("plan")
        counted = killer.arm(None if plan is None else killer.KillPlan(**plan))
        what, name = order["do"]
        COMMANDS[what](name)
        counts.write_text(json.dumps(counted))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, after: float | None) -> int:
    """Its exit status; it is killed after `after` seconds unless that is None."""
    begun = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        waited = time.monotonic() - begun
        if waited > PATIENCE_S or (after is not None and waited > after):
            _kill_group(child)
        time.sleep(0.002)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


# What commands import lazily: without this a run would spend more time on imports than on its computation.
IMPORTED = ("lightning.fabric", "numba", "torch.utils.flop_counter", "torch.utils.tensorboard")
IMPORTED += ("longspan.api", "longspan.efficiency.sweep", "longspan.runs", "longspan.training.loop")


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
