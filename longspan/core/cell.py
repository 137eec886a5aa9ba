"""A cell of the arena, in the words of the command line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)  # else each of thousands has a dictionary as soon as it is pickled
class Cell:
    """What is to be run, in the words of the command line."""

    task: str
    mechanism: str
    pattern: str | None = None
    protocol: str = "longspan"
    tier: str = "smoke"
    seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)


def cells(
    names: list[str],
    mechanisms: list[str],
    *,
    pattern: str | None = None,
    protocol: str = "longspan",
    tier: str = "smoke",
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
) -> Iterator[Cell]:
    """Every combination, task by task, so that a board fills column by column."""
    for task in names:
        for mechanism in mechanisms:
            for seed in range(seeds):
                yield Cell(task, mechanism, pattern, protocol, tier, seed, overrides or {})
