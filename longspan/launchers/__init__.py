"""Many cells: each runs in a worker process, so that none can harm another or the command that started it.

for cell, outcome in launch(cells, launcher="ray", address="head:6379", out="/shared/out"):
    print(cell.mechanism, outcome.card["score"] if outcome.card else outcome.sentence)
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from longspan.core.cell import Cell
from longspan.core.errors import UsageError, did_you_mean
from longspan.launchers.base import Budget, Launcher, Outcome
from longspan.launchers.limits import Limits

LAUNCHERS = {"local": "Local", "ray": "Ray", "slurm": "Slurm"}


def launch(
    cells: Iterable[Cell],
    *,
    launcher: str = "local",
    limits: Limits | None = None,
    budget: float | None = None,
    **how: Any,
) -> Iterator[tuple[Cell, Outcome]]:
    """Run cells and yield each with its outcome, as they end; a wrong one is refused before anything is trained.

    `budget` is in seconds, for all of them together. `how` are options of the launcher (`address`, `settings`, `share`)
    and arguments of `longspan.runs.run` (`out`, `device`, `real`).
    """
    waiting = list(cells)
    how = {"out": "out", "device": "auto"} | how
    with open_launcher(launcher, limits or Limits.parse(None, None), Budget(budget), **how) as opened:
        opened.plan(waiting)
        yield from opened.run(lambda left: waiting.pop(0) if waiting else None)


def open_launcher(name: str, limits: Limits, budget: Budget, **how: Any) -> Launcher:
    """A launcher by its name; `how` are its own options and the arguments of `runs.run`."""
    if name not in LAUNCHERS:
        raise UsageError(f"No launcher named {name!r}.{did_you_mean(name, LAUNCHERS)}")
    module = import_module(f"longspan.launchers.{name}")
    return getattr(module, LAUNCHERS[name])(limits, budget, **how)
