"""Many cells: each runs in a worker process, so that none can harm another or the command that was given."""

from importlib import import_module
from typing import Any

from longspan.core.errors import UsageError, did_you_mean
from longspan.launchers.base import Budget, Launcher
from longspan.launchers.limits import Limits

LAUNCHERS = {"local": "Local", "ray": "Ray"}


def open_launcher(name: str, limits: Limits, budget: Budget, **how: Any) -> Launcher:
    """A launcher by its name; `how` are its own options and the arguments of `runs.run`."""
    if name not in LAUNCHERS:
        raise UsageError(f"No launcher named {name!r}.{did_you_mean(name, LAUNCHERS)}")
    module = import_module(f"longspan.launchers.{name}")
    return getattr(module, LAUNCHERS[name])(limits, budget, **how)
