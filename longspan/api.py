"""The verbs as functions, for notebooks and scripts: `longspan.run(...)`, `longspan.params(...)`.

What is a function elsewhere already (`check`, `load`, `board`) is offered as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan import attentions, runs, tasks
from longspan.core.errors import UsageError
from longspan.results.card import Card


def run(
    task: str,
    mechanism: str,
    *,
    pattern: str | None = None,
    protocol: str = "longspan",
    tier: str = "smoke",
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path = "out",
    **how: Any,
) -> Card:
    """Train and score one cell; a finished one is answered from its card, an interrupted one goes on.

    `how` is passed on to `longspan.runs.run`: `device`, `precision`, `devices`, `data`, `real`, `progress`.

        card = longspan.run("listops", "performer(features=64)", tier="smoke")
        card["score"]["value"]
    """
    cell = runs.Cell(task, mechanism, pattern, protocol, tier, seed, dict(overrides or {}))
    return runs.run(cell, out=out, **how)


def params(protocol: str = "longspan", tier: str = "full") -> list[dict[str, Any]]:
    """Parameter counts of every task's network with every mechanism that fits it, and their ratio to softmax."""
    rows = []
    for task in map(tasks.get, tasks.names()):
        if (protocol, tier) not in task.protocols:
            continue
        baseline = runs.count_parameters(task.name, "softmax", protocol, tier)["total"]
        for name in attentions.names():
            if task.pattern(None) in attentions.get(name).meta.patterns:
                counted = runs.count_parameters(task.name, name, protocol, tier)
                row = {"task": task.name, "backbone": task.meta.backbone, "mechanism": name}
                rows.append(
                    {**row, "protocol": protocol, "tier": tier, **counted, "ratio": counted["total"] / baseline}
                )
    if not rows:
        raise UsageError(f"No task has the protocol {protocol!r} with tier {tier!r}; see longspan list protocols.")
    return rows
