"""The verbs as functions, for notebooks and scripts: `longspan.run(...)`, `longspan.params(...)`.

What is a function elsewhere already (`check`, `load`, `board`) is offered as it is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan import attentions, probes, rules, runs, tasks
from longspan.attentions import Pattern
from longspan.core.errors import UnsupportedPattern, UsageError
from longspan.probes.ask import ask as put
from longspan.published.sizes import PrintedSize, sizes
from longspan.results.card import Card
from longspan.runs.load import load_trained

__all__ = ["ask", "params", "run"]

Counted = tuple[str, str, str, str]  # task, mechanism, pattern, protocol


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


def ask(
    question: str,
    card: str | Path,
    *,
    samples: int | None = None,
    seed: int = 0,
    out: str | Path = "out",
    data: str | Path | None = None,
    device: str = "auto",
    attention: str | None = None,
) -> tuple[Card, Path]:
    """Put a question to the trained model behind a run card: the probe card and where it lies.

    `samples` are as many as the question usually takes unless given.

        card, path = longspan.ask("span", "out/cards/listops/....json", samples=100)
    """
    probes.get(question)  # raises the sentence before a model is loaded
    trained = load_trained(card, data=data, device=device, attention=attention)
    return put(question, trained, samples=samples, seed=seed, out=out)


def params(
    names: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    protocol: str | None = None,
    tier: str = "full",
) -> list[dict[str, Any]]:
    """Parameter counts of every task's network with every mechanism that fits it, against softmax.

    `names` are tasks, all unless given. Each pattern of a task is counted by itself; `pattern` asks for one, or for
    several replaced at once. Without a `protocol` it is longspan, and what papers print is counted under theirs.

        longspan.params(["listops"], ["softmax", "performer(features=64)"])
    """
    chosen = list(map(attentions.get, mechanisms or attentions.names()))
    asked = {Pattern.parse(word.strip()) for word in pattern.split("+")} if pattern else set()
    under, own = protocol or "longspan", {str(one) for one in chosen}
    cells: dict[Counted, None] = {}
    for name in names or tasks.names():
        task = tasks.get(name)
        slots = dict.fromkeys(task.meta.slots.values())
        if names:
            task.protocol(under, tier)  # raises the sentence
        elif (under, tier) not in task.protocols or not asked <= set(slots):
            continue
        for patterns in map(task.patterns, [pattern] if pattern else slots):
            fitting = (str(one) for one in chosen if set(patterns) <= set(one.meta.patterns))
            cells |= dict.fromkeys((name, one, "+".join(patterns), under) for one in fitting)
    printed = {
        cell: size
        for cell, size in _printed(names or tasks.names(), tier).items()
        if protocol in (None, size.protocol)
        and (not mechanisms or cell[1] in own)
        and (not asked or asked == set(size.pattern.split("+")))
    }
    cells |= dict.fromkeys(printed)
    if not cells and mechanisms:
        where = f"as {pattern}" if pattern else f"in any slot of {', '.join(names or tasks.names())}"
        raise UnsupportedPattern(f"{', '.join(mechanisms)} cannot run {where} ({under}, {tier}); name another.")
    if not cells:
        raise UsageError(f"No task has the protocol {under!r} with tier {tier!r}; see longspan list protocols.")
    return [_parameters(cell, tier, printed.get(cell)) for cell in cells]


def _printed(names: Sequence[str], tier: str) -> dict[Counted, PrintedSize]:
    """What papers print about these tasks."""
    return {
        (size.task, str(attentions.get(size.mechanism)), size.pattern, size.protocol): size
        for size in sizes()
        if size.task in names and size.tier == tier and (size.protocol, tier) in tasks.get(size.task).protocols
    }


def _parameters(cell: Counted, tier: str, printed: PrintedSize | None) -> dict[str, Any]:
    """One line: what was counted, under which rules, whether it keeps the rule of the arena, and what was printed."""
    name, mechanism, pattern, protocol = cell
    counted = runs.count_parameters(name, mechanism, protocol, tier, pattern)
    baseline = runs.count_parameters(name, "softmax", protocol, tier, pattern)["total"]
    task, total = tasks.get(name), counted["total"]
    return {
        "task": task.name,
        "backbone": task.meta.backbone,
        "mechanism": mechanism,
        "pattern": pattern,
        "protocol": protocol,
        "tier": tier,
        **counted,
        "increment": total - baseline,
        "ratio": total / baseline,
        "within_rule": rules.within_rule(total, baseline),
        "published": printed
        and {
            "source": printed.source,
            "printed": f"{printed.printed} M",
            "derived": printed.derived,
            "agrees": total == printed.derived and printed.reads_as_printed(total),
        },
    }
