"""A cell of the arena, in the words of the command line."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNCHANGED = "unchanged"  # stands for the value that a setting has by default


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


def differing(overrides: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The settings that not all of these change in the same way, in the order of their first mention.

    >>> differing([{"recipe.steps": 5}, {"recipe.steps": 5, "model.layers": 6}, {"recipe.steps": 5}])
    ('model.layers',)
    """
    values: dict[str, set[str]] = {}
    for place, changes in enumerate(overrides):
        for name, value in changes.items():
            values.setdefault(name, {UNCHANGED} if place else set()).add(repr(value))
        for name in values.keys() - changes.keys():
            values[name].add(UNCHANGED)
    return tuple(name for name, seen in values.items() if len(seen) > 1)


def settings_text(overrides: Mapping[str, Any], names: Iterable[str]) -> str:
    """These settings as far as they are changed: `model.layers=6, model.positions=rope`."""
    return ", ".join(f"{name}={overrides[name]}" for name in names if name in overrides)


def distinct_names(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Names that tell each of these cells from the others: `listops · softmax · seed 0 · model.layers=6`."""
    changed = differing(cell.overrides for cell in cells)
    apart = [field for field in ("protocol", "tier") if len({getattr(cell, field) for cell in cells}) > 1]

    def name(cell: Cell) -> str:
        words = [cell.task, cell.mechanism, cell.pattern, *(getattr(cell, field) for field in apart)]
        return " · ".join(filter(None, [*words, f"seed {cell.seed}", settings_text(cell.overrides, changed)]))

    return name
