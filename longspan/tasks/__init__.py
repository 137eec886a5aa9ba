"""The tasks: one flat file each, found by file name."""

from dataclasses import replace

from longspan import backbones
from longspan.core.errors import UsageError
from longspan.core.registry import Registry, canonical_target
from longspan.core.spec import Spec
from longspan.tasks.base import Protocol, Recipe, Task, TaskMeta

registry = Registry(
    "task",
    __name__,
    f"{__name__}.base:Task",
    skip=(
        *("base", "byte_pairs", "byte_text", "cab_table", "classification", "diffusion", "forecasting", "fresh_feed"),
        *("copying_rules", "language", "lit_feed", "lra_models", "masked_tokens", "pathfinder_rules"),
        *("placed_answers", "recall_rules", "row_draws", "speech", "speech_feed", "speech_rules", "speech_sound"),
        *("strong", "token_feed", "widths"),
    ),
)


def names() -> list[str]:
    return registry.names()


def get(name: "str | Task") -> Task:
    """The task of this name or plug-in path, which cards then call `file.py:Class`, without its folder.

    `listops@file.py:Network` is the task with another network, which cards and boards treat as a task of its own.
    """
    if isinstance(name, Task):
        return name
    plain, network = parted(name)
    if network:
        return _with_network(get(plain), network)
    task = registry.find(name)()
    if not registry.is_builtin(name):
        task.called = canonical_target(Spec(name))
    return task


def parted(name: str) -> tuple[str, str]:
    """A task and the network that it gets: split at an @ behind a task's name or class, not at one within a path."""
    plain, _, network = name.rpartition("@")
    is_class = ":" in plain and plain.rpartition(":")[2].isidentifier()
    return (plain, network) if is_class or plain in names() else (name, "")


def _with_network(task: Task, target: str) -> Task:
    found = backbones.registry.find(target)
    if not task.takes_network:
        raise UsageError(
            f"{task.name} has a network that only fits itself, and {target} was to take its place; write a task whose "
            "model builds it."
        )
    called = canonical_target(Spec(target))
    task.called, task.network = f"{task.name}@{called}", found
    task.meta = replace(task.meta, title=f"{task.meta.title} in {called}", backbone=called)  # of this instance only
    return task


__all__ = ["Protocol", "Recipe", "Task", "TaskMeta", "get", "names"]
