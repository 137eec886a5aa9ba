"""The corpora, one file each: where from, layout, generator; `get(name).load(data)` gives memory-mapped splits.

from longspan.datasets import get, listops
splits = get("listops").load(listops.Data())
"""

from longspan.core.registry import Registry
from longspan.datasets.base import Dataset

REGISTRY = Registry("dataset", "longspan.datasets", "longspan.datasets.base:Dataset", skip=("base", "corpus", "series"))


def names() -> list[str]:
    """All datasets by name."""
    return REGISTRY.names()


def get(name: str) -> Dataset:
    """The dataset called `name`; an unknown one is answered with the nearest name."""
    return REGISTRY.find(name)()
