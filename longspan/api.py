"""The commands as functions, for notebooks and scripts: `longspan.run(...)`, `longspan.params(...)`.

Functions that exist elsewhere already (`check`, `load`, `board`) are offered as they are.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from longspan import attentions, backbones, datasets, probes, rules, runs, suites, tasks
from longspan.attentions import Mechanism, Pattern
from longspan.core.errors import LongspanError, UnknownName, UnsupportedPattern, UsageError, did_you_mean
from longspan.core.spec import Spec
from longspan.probes.ask import ask as ask_trained
from longspan.published.sizes import PrintedSize, sizes
from longspan.results.card import Card
from longspan.results.catalogue import KINDS, SCHEMA, Entry, write_shipped
from longspan.runs.load import load_trained, trusted

__all__ = ["ask", "catalogue", "describe", "params", "run"]

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
    """Train and score one cell; a finished one returns its card, an interrupted one is resumed.

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
    trust: bool = False,
) -> tuple[Card, Path]:
    """Ask a question of the trained model behind a run card; returns the probe card and its path.

    `samples` defaults to that of the question. `attention` and `trust` are those of `longspan.load`: no code that the
    card names is run without them.

        card, path = longspan.ask("span", "out/cards/listops/....json", samples=100)
    """
    probes.get(question)  # raises for an unknown question before a model is loaded
    with trusted(attention, trust=trust):  # a question may rebuild the network
        trained = load_trained(card, data=data, device=device, attention=attention, trust=trust)
        return ask_trained(question, trained, samples=samples, seed=seed, out=out)


def params(
    names: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    protocol: str | None = None,
    tier: str = "full",
) -> list[dict[str, Any]]:
    """Parameter counts of every task's network with every mechanism that fits it, against softmax.

    `names` are tasks, all by default. Each pattern of a task is counted by itself; `pattern` selects one, or several
    replaced at once. Without a `protocol` it is longspan, and sizes that papers print are counted under theirs.

        longspan.params(["listops"], ["softmax", "performer(features=64)"])
    """
    chosen = list(map(attentions.get, mechanisms or attentions.names()))
    asked, under = _patterns_in(pattern), protocol or "longspan"
    own = {str(one) for one in chosen}
    printed = {
        cell: size
        for cell, size in _printed(names or tasks.names(), tier).items()
        if protocol in (None, size.protocol)
        and (not mechanisms or cell[1] in own)
        and (not asked or asked == _patterns_in(size.pattern))
    }
    cells = dict.fromkeys([*_fitting(names, chosen, pattern, under, tier), *printed])
    if not cells and mechanisms:
        where = f"as {pattern}" if pattern else f"in any slot of {', '.join(names or tasks.names())}"
        raise UnsupportedPattern(f"{', '.join(mechanisms)} cannot run {where} ({under}, {tier}); name another.")
    if not cells:
        raise UsageError(f"No task has the protocol {under!r} with tier {tier!r}; see longspan list protocols.")
    return [_parameters(cell, tier, printed.get(cell)) for cell in cells]


def _patterns_in(words: str | None) -> set[Pattern]:
    """The patterns in words such as NS+CS."""
    return {Pattern.parse(word.strip()) for word in words.split("+")} if words else set()


def _fitting(
    names: Sequence[str] | None, mechanisms: Sequence[Mechanism], pattern: str | None, protocol: str, tier: str
) -> Iterator[Counted]:
    """Every mechanism in every pattern of every task that it can run in; all tasks without `names`."""
    for name in names or tasks.names():
        task = tasks.get(name)
        slots = dict.fromkeys(task.meta.slots.values())
        if names:
            task.protocol(protocol, tier)  # raises if the task does not have it
        elif (protocol, tier) not in task.protocols or not _patterns_in(pattern) <= set(slots):
            continue
        for patterns in map(task.patterns, [pattern] if pattern else slots):
            for mechanism in mechanisms:
                if set(patterns) <= set(mechanism.meta.patterns):
                    yield name, str(mechanism), "+".join(patterns), protocol


def _printed(names: Sequence[str], tier: str) -> dict[Counted, PrintedSize]:
    """What papers print about these tasks."""
    return {
        (size.task, str(attentions.get(size.mechanism)), size.pattern, size.protocol): size
        for size in sizes()
        if size.task in names and size.tier == tier and (size.protocol, tier) in tasks.get(size.task).protocols
    }


def _parameters(cell: Counted, tier: str, printed: PrintedSize | None) -> dict[str, Any]:
    """One row: what was counted, under which protocol, whether it keeps the arena's rule, and what was printed."""
    name, mechanism, pattern, protocol = cell
    plan = runs.RunPlan.of(runs.Cell(name, mechanism, pattern, protocol, tier))
    counted = runs.count_parameters(name, str(plan.mechanism), protocol, tier, pattern)  # with the protocol's options
    baseline = runs.count_baseline(plan)
    task, total = plan.task, counted["total"]
    return {
        "task": task.name,
        "backbone": task.meta.backbone,
        "mechanism": str(plan.mechanism),
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


# ---------------------------------------------------------------------------------------------------------- catalogue

PROTOCOLS = {
    "longspan": "one fixed recipe for every mechanism, correct masks, best-validation checkpoint",
    "lra-paper": "Long Range Arena as its paper describes it, best-validation checkpoint",
    "lra-released": "Long Range Arena as its released code runs it, models as their twins, last checkpoint",
    "strong": "Long Range Arena by the recipes of S4, S4D and rotary Transformers, free track",
    "cab-2023": "the Comprehensive Attention Benchmark as released in 2023",
}


def catalogue(kinds: Sequence[str] | None = None, *, plugins: bool = True) -> dict[str, Any]:
    """All entries as plain data, or some kinds of them; those that cannot be imported are listed under `problems`.

    `kinds` are those of `longspan list`: attentions, tasks, backbones, datasets, suites, protocols.

        longspan.catalogue(["attentions"])["attentions"][0]["name"]
    """
    content: dict[str, Any] = {"schema": SCHEMA}
    problems = []
    for kind in kinds or KINDS:
        content[kind] = []
        for name in _names(kind, plugins):
            try:
                content[kind].append(describe(kind, name))
            except LongspanError as error:
                problems.append({"kind": kind, "name": name, "sentence": str(error)})
    return content | {"problems": problems}


def ship_catalogue() -> None:
    """Write the catalogue that is shipped with the package, built-ins only: `make generated`."""
    write_shipped(catalogue(plugins=False))


def describe(kind: str, name: str) -> Entry:
    """One entry. An attention may also be a string with options, or a file or module of the user's own."""
    if kind not in _DESCRIBE:
        raise UnknownName(f"No kind of thing called {kind!r}.{did_you_mean(kind, _DESCRIBE)}")
    return _DESCRIBE[kind](name)


def kind_of(target: str) -> str:
    """The kind of what a plug-in path names: an attention, unless its class is a task or another network."""
    path = Spec.parse(target).target
    kinds = ("attentions", "tasks", "backbones") if ":" in path else ()
    return next((kind for kind in kinds if import_module(f"longspan.{kind}").registry.takes(path)), "attentions")


def _names(kind: str, plugins: bool) -> list[str]:
    if kind == "suites":
        return suites.names()
    if kind == "protocols":
        return sorted(_protocol_tasks(_names("tasks", plugins)))
    return import_module(f"longspan.{kind}").registry.names(plugins=plugins)


def _protocol_tasks(names: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """protocol -> task -> tiers."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        with contextlib.suppress(LongspanError):  # a broken plug-in is reported where tasks are listed
            for protocol, tier in tasks.get(name).protocols:
                found.setdefault(protocol, {}).setdefault(name, []).append(tier)
    return found


def _attention(name: str) -> Entry:
    mechanism = attentions.get(name)
    meta = dataclasses.asdict(mechanism.meta)
    return {
        "name": str(mechanism),
        **{key: meta[key] for key in sorted(meta)},
        "patterns": [pattern.value for pattern in mechanism.meta.patterns],
        "options": [
            {"name": option.name, "type": option.type, "default": _plain(option.default)}
            for option in mechanism.available_options()
        ],
        "formula": mechanism.formula,
    }


def _task(name: str) -> Entry:
    task = tasks.get(name)
    return {
        "name": task.name,
        **{field.name: getattr(task.meta, field.name) for field in dataclasses.fields(task.meta)},
        "slots": {slot: pattern.value for slot, pattern in task.meta.slots.items()},
        "dataset": task.dataset,
        "protocols": [list(key) for key in task.protocols],
        "settings": {f"{protocol}/{tier}": _plain(rules) for (protocol, tier), rules in task.protocols.items()},
        "presets": {protocol: _plain(dict(forms)) for protocol, forms in task.presets.items()},
        "about": _module_words(type(task)),
    }


def _backbone(name: str) -> Entry:
    about = backbones.describe(name)
    return {"name": name, "title": about.split("\n", 1)[0], "about": about}


def _dataset(name: str) -> Entry:
    dataset = datasets.get(name)
    return {
        "name": dataset.name,
        **{field.name: getattr(dataset.meta, field.name) for field in dataclasses.fields(dataset.meta)},
        "settings": _plain(dataset.Data()),
        "about": _module_words(type(dataset)),
    }


def _suite(name: str) -> Entry:
    return _plain(suites.get(name))


def _protocol(name: str) -> Entry:
    known = _protocol_tasks(tasks.names())
    if name not in known:
        raise UnknownName(f"No protocol named {name!r}.{did_you_mean(name, known)}")
    return {"name": name, "title": PROTOCOLS.get(name, "a protocol of a plug-in task"), "tasks": known[name]}


_DESCRIBE: dict[str, Callable[[str], Entry]] = {
    "attentions": _attention,
    "tasks": _task,
    "backbones": _backbone,
    "datasets": _dataset,
    "suites": _suite,
    "protocols": _protocol,
}


def _module_words(cls: type) -> str:
    return inspect.cleandoc(inspect.getmodule(cls).__doc__ or cls.__doc__ or "")


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and enums as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if value is inspect.Parameter.empty:
        return "required"
    raise UsageError(f"A catalogue holds plain values, got {value!r}.")
