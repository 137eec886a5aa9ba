"""The catalogue: everything there is, as plain data. `longspan list --json` prints it; the reading half knows no more.

    content = catalogue()                # {"schema": 1, "attentions": [...], "tasks": [...], ...}
    write("out/catalogue.json")

Making it imports every mechanism and task, hence torch; reading it back needs nothing.
"""

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from longspan.core import atomic
from longspan.core.errors import CorruptFile, LongspanError, UnknownName, UsageError, did_you_mean

SCHEMA = 1
Entry = dict[str, Any]

PROTOCOLS = {
    "longspan": "one fixed recipe for every mechanism, correct masks, best-validation checkpoint",
    "lra-paper": "Long Range Arena as its paper describes it, best-validation checkpoint",
    "lra-released": "Long Range Arena as its released configurations run it, last checkpoint",
    "cab-2023": "the Comprehensive Attention Benchmark as released in 2023",
}


def catalogue(kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The entries of all kinds, or of some. What cannot be imported is listed under `problems`."""
    content: dict[str, Any] = {"schema": SCHEMA}
    problems = []
    for kind in kinds or tuple(KINDS):
        content[kind] = []
        for name in names(kind):
            try:
                content[kind].append(describe(kind, name))
            except LongspanError as error:
                problems.append({"kind": kind, "name": name, "sentence": str(error)})
    return content | {"problems": problems}


def write(path: str | Path) -> dict[str, Any]:
    """Make the catalogue, keep it in a file for those without torch, return it."""
    content = catalogue()
    atomic.write_json(Path(path), content)
    return content


def read(path: str | Path) -> dict[str, Any]:
    """A catalogue written earlier."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptFile(
            f"{path} is not a readable catalogue ({error}); write it again: longspan list --json."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise CorruptFile(f"{path} is not a catalogue of schema {SCHEMA}; write it again: longspan list --json.")
    return content


def names(kind: str) -> list[str]:
    """The names of one kind, without importing what they name where that can be avoided."""
    if kind not in KINDS:
        raise UnknownName(f"No kind of thing called {kind!r}.{did_you_mean(kind, KINDS)}")
    if kind == "protocols":
        return sorted(_protocol_tasks())
    return list(import_module(f"longspan.{kind}").names())


def describe(kind: str, name: str) -> Entry:
    """One entry. An attention may also be a string with options, or a file or module of the user's own."""
    if kind not in KINDS:
        raise UnknownName(f"No kind of thing called {kind!r}.{did_you_mean(kind, KINDS)}")
    return KINDS[kind](name)


def find(name: str) -> dict[str, Entry]:
    """Every kind that knows the name, with its entry: `listops` is both a task and a dataset."""
    if any(mark in name for mark in ":("):
        return {"attentions": describe("attentions", name)}
    found = {kind: describe(kind, name) for kind in KINDS if name in names(kind)}
    if not found:
        known = {name for kind in KINDS for name in names(kind)}
        raise UnknownName(f"Nothing is named {name!r}.{did_you_mean(name, known)}")
    return found


# ---------------------------------------------------------------------------------------------------- one of each kind


def _attention(name: str) -> Entry:
    from longspan import attentions

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
    from longspan import tasks

    task = tasks.get(name)
    return {
        "name": task.name,
        **{field.name: getattr(task.meta, field.name) for field in dataclasses.fields(task.meta)},
        "slots": {slot: pattern.value for slot, pattern in task.meta.slots.items()},
        "dataset": task.dataset,
        "protocols": [list(key) for key in task.protocols],
        "settings": {f"{protocol}/{tier}": _plain(rules) for (protocol, tier), rules in task.protocols.items()},
        "about": _module_words(type(task)),
    }


def _backbone(name: str) -> Entry:
    from longspan import backbones

    about = backbones.describe(name)
    return {"name": name, "title": about.split("\n", 1)[0], "about": about}


def _dataset(name: str) -> Entry:
    from longspan import datasets

    dataset = datasets.get(name)
    return {
        "name": dataset.name,
        **{field.name: getattr(dataset.meta, field.name) for field in dataclasses.fields(dataset.meta)},
        "settings": _plain(dataset.Data()),
        "about": _module_words(type(dataset)),
    }


def _suite(name: str) -> Entry:
    from longspan import suites

    return _plain(suites.get(name))


def _protocol(name: str) -> Entry:
    tasks = _protocol_tasks()
    if name not in tasks:
        raise UnknownName(f"No protocol named {name!r}.{did_you_mean(name, tasks)}")
    return {"name": name, "title": PROTOCOLS.get(name, "a protocol of a plug-in task"), "tasks": tasks[name]}


KINDS: dict[str, Callable[[str], Entry]] = {
    "attentions": _attention,
    "tasks": _task,
    "backbones": _backbone,
    "datasets": _dataset,
    "suites": _suite,
    "protocols": _protocol,
}


def _protocol_tasks() -> dict[str, dict[str, list[str]]]:
    """protocol -> task -> tiers."""
    from longspan import tasks

    found: dict[str, dict[str, list[str]]] = {}
    for name in tasks.names():
        with contextlib.suppress(LongspanError):  # a broken plug-in is told about where tasks are listed
            task = tasks.get(name)
            for protocol, tier in task.protocols:
                found.setdefault(protocol, {}).setdefault(name, []).append(tier)
    return found


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
