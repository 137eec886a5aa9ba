"""Which cells does a board lack, and which of them should be run next?

    plan = missing(cards, catalogue, "lra", times)
    queue = Queue(plan.cells)
    queue.take(1500.0)        # the most informative one per minute that ends in 25 minutes

A cell is done if a card of it counts on the board: real data (in smoke, any), no overrides, the current version of the
task and of the mechanism, under the current settings; a failed run is a result too. The first seed of a cell is worth
1, later ones what they take off the variance of the mean, 1/2 and 1/6; softmax counts twice, since all others are
compared with it. The cells worth most per minute come first, and an unfinished run costs only the rest of its time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan import suites
from longspan.analysis.expected_time import BASELINE, Expected, Times, named
from longspan.core.cell import Cell
from longspan.core.errors import UsageError, did_you_mean
from longspan.results.card import Card
from longspan.results.collect import pattern_name
from longspan.results.run_settings import decisive
from longspan.results.variant import REAL, data_of

UNKNOWN_SECONDS = 600.0  # assumed for a cell of unknown duration, only to order it
START_SECONDS = 30.0  # start-up cost of a cell: no estimate is more exact than that


@dataclass(frozen=True)
class MissingCell:
    """A cell without a card, what it would add to the board, and what it would take."""

    cell: Cell
    pattern: str
    information: float
    expected: Expected
    done: float = 0.0  # the share of its steps that an unfinished run has done

    @property
    def seconds(self) -> float | None:
        """The expected time that is left of it."""
        whole = self.expected.seconds
        return None if whole is None else whole * (1 - self.done)

    @property
    def per_minute(self) -> float:
        """Information per minute.

        Where the time is unknown, softmax goes first to measure it for the others, which wait unless they were begun.
        """
        seconds = self.seconds
        if seconds is None:
            if self.cell.mechanism != BASELINE and not self.done:
                return 0.0
            seconds = UNKNOWN_SECONDS * (1 - self.done)
        return 60 * self.information / (START_SECONDS + seconds)


@dataclass(frozen=True)
class Plan:
    """The missing cells, best first; how many cells of each task are present; notes on what is left out."""

    cells: tuple[MissingCell, ...]
    present: Mapping[str, int]
    notes: tuple[str, ...]


def missing(
    cards: Iterable[Card],
    catalogue: Mapping[str, Any],
    suite: str,
    times: Times,
    *,
    mechanisms: Sequence[str] | None = None,
    pattern: str | None = None,
    protocol: str = "longspan",
    tier: str = "full",
    seeds: int = 1,
    begun: Mapping[tuple, float] | None = None,
) -> Plan:
    """What the board of a suite or of one task lacks.

    Without `mechanisms` all ranked ones are wanted. `begun` is the finished share of unfinished runs, by `cell_key`.
    """
    known = {entry["name"]: entry for entry in catalogue["tasks"]}
    entries = {entry["name"]: entry for entry in catalogue["attentions"]}
    places = _places(suite, protocol, pattern, known)
    wanted = list(dict.fromkeys(mechanisms or [name for name, one in entries.items() if not one["fidelity"]]))
    there = {_card_key(card) for card in cards if _counts(card, known, entries, protocol, tier)}
    found, notes, present = [], [], {}
    for task, slots_of in places:
        entry = known[task]
        if f"{protocol}/{tier}" not in entry["settings"]:
            notes.append(f"{task} has no {tier} tier under {protocol}.")
            continue
        slots = list(dict.fromkeys(entry["slots"].values()))
        filled = pattern_name(slots_of) if slots_of else slots[0]
        if absent := [one for one in filled.split("+") if one not in slots]:
            notes.append(f"{task} has no slot for {absent[0]}.")
            continue
        cannot = [name for name in wanted if name in entries and not _can(entries[name], filled)]
        if cannot and mechanisms:
            notes.append(f"Cannot run as {filled}, which {task} needs: {', '.join(cannot)}.")
        steps = entry["settings"][f"{protocol}/{tier}"]["recipe"]["steps"]
        present.setdefault(task, 0)
        for name in (one for one in wanted if one not in cannot):
            expected = times.of(task, name, filled, protocol, tier, steps)
            for seed in range(seeds):
                cell = Cell(task, name, slots_of, protocol, tier, seed)
                if (task, name, filled, seed) in there:
                    present[task] += 1
                else:
                    done = (begun or {}).get(cell_key(cell), 0.0)
                    found.append(MissingCell(cell, filled, _information(name, seed), expected, done))
    order = sorted(found, key=lambda one: (-one.per_minute, -one.information, one.cell.seed))
    return Plan(tuple(order), present, tuple(dict.fromkeys(notes)))


def cell_key(cell: Cell) -> tuple:
    """The key of a cell without overrides, in the words of the command line."""
    slots = pattern_name(cell.pattern) if cell.pattern else None
    return cell.task, cell.mechanism, slots, cell.protocol, cell.tier, cell.seed


def _information(mechanism: str, seed: int) -> float:
    """What a seed adds: the first one the score, others what they take off the variance of the mean."""
    return (2.0 if mechanism == BASELINE else 1.0) / (seed * (seed + 1) if seed else 1)


def _places(name: str, protocol: str, pattern: str | None, known: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Tasks with the pattern to fill, in the words of the command line."""
    if name in suites.names():
        suite = suites.get(name)
        found = suite.places(protocol, pattern_name(pattern) if pattern and suite.patterns else pattern)
        return [(task, pattern or one) for task, one in found if task in known]
    if name not in known:
        raise UsageError(f"No suite or task named {name!r}.{did_you_mean(name, [*suites.names(), *known])}")
    return [(name, pattern)]


def _can(entry: Mapping[str, Any], patterns: str) -> bool:
    return set(patterns.split("+")) <= set(entry["patterns"])


def _card_key(card: Card) -> tuple[str, str, str, int]:
    return card["task"], named(card), card["pattern"], card["seed"]


def _counts(card: Card, tasks: Mapping[str, Any], mechanisms: Mapping[str, Any], protocol: str, tier: str) -> bool:
    """Whether a board shows this card under the current versions and settings."""
    entry = tasks.get(card["task"])
    if entry is None or card["overrides"] or (card["protocol"], card["tier"]) != (protocol, tier):
        return False
    if card["task_version"] != entry["version"] or (tier != "smoke" and data_of(card) != REAL):
        return False
    target = mechanisms.get(card["mechanism"].partition("(")[0])
    if target is not None and card["settings"].get("mechanism_version", 1) != target["version"]:
        return False
    own = entry.get("presets", {}).get(protocol, {}).get(named(card), {}).get("changes")
    settings = entry["settings"].get(f"{protocol}/{tier}")
    return bool(own) or settings is None or decisive(card) == decisive({"settings": settings})


class Queue:
    """The cells of a plan, handed out one at a time."""

    def __init__(self, cells: Iterable[MissingCell], slowdown: float = 1.0):
        self.left = list(cells)
        self.slowdown = slowdown  # factor on the time of a cell that shares its device

    def take(self, seconds: float | None) -> MissingCell | None:
        """The best one that ends in time; where none does, the best of all, to be resumed later."""
        fits = (one for one in self.left if seconds is None or self._takes(one) <= seconds)
        chosen = next(fits, self.left[0] if self.left else None)
        if chosen is not None:
            self.left.remove(chosen)
        return chosen

    def drop(self, task: str) -> list[MissingCell]:
        """Drop the cells of a task whose data are missing."""
        gone = [one for one in self.left if one.cell.task == task]
        self.left = [one for one in self.left if one.cell.task != task]
        return gone

    def _takes(self, one: MissingCell) -> float:
        return float("inf") if one.seconds is None else one.seconds * self.slowdown_of(one) + START_SECONDS

    def slowdown_of(self, one: MissingCell) -> float:
        """1 where the expected time already comes from a run that shared its device."""
        return 1.0 if one.expected.shared else self.slowdown
