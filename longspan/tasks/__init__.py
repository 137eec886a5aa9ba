"""The tasks: one flat file each, found by file name."""

from longspan.core.registry import Registry, canonical_target
from longspan.core.spec import Spec
from longspan.tasks.base import Protocol, Recipe, Task, TaskMeta

registry = Registry(
    "task",
    __name__,
    f"{__name__}.base:Task",
    skip=(
        *("base", "byte_pairs", "byte_text", "cab_table", "classification", "diffusion", "forecasting", "fresh_feed"),
        *(
            "copying_rules",
            "language",
            "lra_models",
            "masked_tokens",
            "pathfinder_rules",
            "placed_answers",
            "speech",
            "speech_feed",
            "speech_rules",
            "speech_sound",
            "strong",
            "widths",
        ),
    ),
)


def names() -> list[str]:
    return registry.names()


def get(name: "str | Task") -> Task:
    """The task of this name or plug-in path, which cards then call `file.py:Class`, without its folder."""
    if isinstance(name, Task):
        return name
    task = registry.find(name)()
    if not registry.is_builtin(name):
        task.called = canonical_target(Spec(name))
    return task


__all__ = ["Protocol", "Recipe", "Task", "TaskMeta", "get", "names"]
