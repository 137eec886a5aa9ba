"""The tasks: one flat file each, found by file name."""

from longspan.core.registry import Registry
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
    """The task of this name or plug-in path."""
    return name if isinstance(name, Task) else registry.find(name)()


__all__ = ["Protocol", "Recipe", "Task", "TaskMeta", "get", "names"]
