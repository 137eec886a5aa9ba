"""The datasets, one file each: where from, layout, generator; `get(name).load(data)` gives memory-mapped splits.

    from longspan.datasets import get, listops
    splits = get("listops").load(listops.Data())

Nothing here imports torch.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from longspan.core.registry import Registry
from longspan.datasets.base import Dataset

registry = Registry(
    "dataset", __name__, f"{__name__}.base:Dataset", skip=("base", "characters", "corpus", "placed_answers", "series")
)


class Use(NamedTuple):
    """One setting of a dataset and its users: `longspan/full`, after the task's name if it is not the dataset's."""

    dataset: Dataset
    data: Any
    users: tuple[str, ...]


def names() -> list[str]:
    """The names of all datasets."""
    return registry.names()


def get(name: str) -> Dataset:
    """The dataset called `name`; the error for an unknown name suggests the nearest one."""
    return registry.find(name)()


def uses(name: str | None = None) -> Iterator[Use]:
    """Every preset of one dataset or of all, each setting once."""
    for dataset in map(get, [name] if name else names()):
        users: dict[Any, list[str]] = {}
        for task, settings in dataset.presets.items():
            prefix = "" if task == dataset.name else f"{task} "
            for (protocol, tier), data in settings.items():
                users.setdefault(dataset.stored(data), []).append(f"{prefix}{protocol}/{tier}")
        for data, words in users.items():
            yield Use(dataset, data, tuple(words))


def examples_of(name: str) -> tuple[Dataset, Any]:
    """A dataset with its default settings; given the name of a task, its dataset with the task's full settings."""
    if name not in names():
        for dataset in map(get, names()):
            if name in dataset.presets:
                return dataset, dataset.presets[name]["longspan", "full"]
    dataset = get(name)
    return dataset, dataset.Data()
