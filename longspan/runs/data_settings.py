"""Which settings of which datasets the tasks use: what `longspan data` prepares, shows and verifies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longspan import datasets, tasks
from longspan.datasets.base import Dataset
from longspan.tasks import Protocol


@dataclass(frozen=True)
class Use:
    """One setting of a dataset, and the tasks, protocols and tiers that use it."""

    dataset: Dataset
    data: Any
    users: tuple[str, ...]


def settings(name: str, protocol: str, tier: str, changes: Mapping[str, Any] | None = None) -> tuple[Dataset, Any]:
    """A dataset with the settings that its task has under a protocol and tier, and some of them changed."""
    dataset = datasets.get(name)
    users = [task for task in map(tasks.get, tasks.names()) if task.dataset == name]
    for task in users:
        if (protocol, tier) in task.protocols:
            return dataset, changed(task.protocols[protocol, tier].data, changes)
    if users:
        users[0].protocol(protocol, tier)  # raises the sentence that says which there are
    return dataset, changed(dataset.Data(), changes)


def examples_of(name: str, changes: Mapping[str, Any] | None = None) -> tuple[Dataset, Any]:
    """A dataset by its own name, or by that of a task, whose full settings it then has; some of them changed."""
    if name in tasks.names() and name not in datasets.names():
        task = tasks.get(name)
        return datasets.get(task.dataset), changed(task.protocol("longspan", "full").data, changes)
    dataset = datasets.get(name)
    return dataset, changed(dataset.Data(), changes)


def changed(data: Any, changes: Mapping[str, Any] | None) -> Any:
    """Settings with typed changes by name, as in {"size": 64}."""
    rules = Protocol(data=data, model=None, recipe=None)  # type: ignore[arg-type]
    return rules.override({f"data.{name}": value for name, value in (changes or {}).items()}).data


def in_use(name: str | None = None) -> Iterator[Use]:
    """Every setting that some task uses, of one dataset or of all."""
    known = {one: datasets.get(one) for one in ([name] if name else datasets.names())}
    users: dict[tuple[str, Any], list[str]] = {}
    for task in map(tasks.get, tasks.names()):
        for (protocol, tier), rules in task.protocols.items():
            who = f"{protocol}/{tier}" if task.name == task.dataset else f"{task.name} {protocol}/{tier}"
            users.setdefault((task.dataset, rules.data), []).append(who)
    for (dataset, data), words in users.items():
        if dataset in known:
            yield Use(known[dataset], data, tuple(words))
