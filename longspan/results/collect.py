"""Cards collected from folders, for boards and the report: one board for every group of cards that may be compared.

    found = cards_in(card_folders(None, out=Path("out")))
    for view in boards(found.cards, "starter"):
        print(render(view))

Reading half: never imports torch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan import published as papers
from longspan import suites
from longspan.core.errors import UsageError, did_you_mean
from longspan.results.board import board, suites_of
from longspan.results.board_columns import is_generated, kind_on_board
from longspan.results.board_types import Board
from longspan.results.card import Card
from longspan.results.conformance import PREFIX
from longspan.results.conformance import load as load_checks
from longspan.results.published_rows import tables_of
from longspan.results.scoring import scored_by
from longspan.results.shipped import shipped_checks
from longspan.results.store import Problem, Store
from longspan.results.variant import REAL, STANDIN, kind_of
from longspan.suites import Suite

TIERS = ("smoke", "lite", "full")
PUBLISHED = {"lra": "v1", "lra4": "v1"}  # the table that the full board of a suite shows unless another is asked for
PATTERNS = {"NS": "noncausal_self", "CS": "causal_self", "NC": "noncausal_cross", "CC": "causal_cross"}


@dataclass(frozen=True)
class Cards:
    """Sound cards, without those superseded by another in the same folder, and the files that are not sound cards."""

    cards: list[Card]
    problems: list[Problem]


def card_folders(given: Sequence[Path] | None, out: Path) -> list[Path]:
    """The given folders, else the user's own cards and those that are committed beside the code."""
    for folder in given or ():
        if not folder.is_dir():
            raise UsageError(f"Cards were to be read from {folder}, which is no folder; name one that holds cards.")
    return (
        list(given) if given else [f for f in (out / "cards", *sorted(Path("results").glob("*/cards"))) if f.is_dir()]
    )


def cards_in(folders: Sequence[Path], tasks: Collection[str] | None = None) -> Cards:
    """The newest card of every run below each folder, or of these tasks alone; conformance results are skipped."""
    found = Cards([], [])
    for folder in folders:
        store = Store(folder)
        found.cards.extend(store.cards() if tasks is None else store.find(task=list(tasks)))
        found.problems.extend(problem for problem in store.problems if not problem.path.name.startswith(PREFIX))
    return found


def cards_of(name: str, folders: Sequence[Path]) -> Cards:
    """The cards that boards of this suite or task are made from; all if there are none, since it may be misspelled."""
    found = cards_in(folders, suites.get(name).every_task if name in suites.names() else [name])
    return found if found.cards else cards_in(folders)


def checks_in(given: Sequence[Path] | None, out: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Results of `longspan check`: the user's own, those beside the given cards, beside the code or shipped with it."""
    return load_checks([out / "conformance", *(given or ()), Path("results")], others=shipped_checks())


def boards(
    cards: Sequence[Card],
    name: str,
    *,
    protocol: str | None = None,
    tier: str | None = None,
    pattern: str | None = None,
    published: str | None = None,
    metric: str | None = None,
    data: str | None = None,
    conformance: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Board]:
    """One board for every protocol, tier, pattern and kind of data that has cards of this suite or task.

    A suite with published numbers has a full board even before the first run. `published` chooses among its tables
    (`v0`, `v1`, `later`); `none` leaves them out. `metric` ranks one task by another metric than its score. `data`
    selects one kind of data: `real`, `standin`, or the name of a substitute.
    `conformance` are results of `longspan check`, from which rows say whether their mechanism keeps its promises.
    """
    if metric:
        if name in suites.names():
            raise UsageError(f"Suite {name} has a score of its own, and --metric was {metric}; name one of its tasks.")
        cards = scored_by([card for card in cards if card["task"] == name], metric)
    suite, pattern = suite_or_task(name, cards), pattern and pattern_name(pattern)
    data = data and kind_of(data)
    if pattern:
        suite.under(pattern)  # refuses one that the suite does not rank
    tables = {one: table for one, table in published_tables(suite, published).items() if pattern in (None, one)}
    if published and tables and tier not in (None, "full"):
        raise UsageError(f"Published numbers stand beside full runs, not beside {tier} ones; leave out --tier.")
    if published and tables and data not in (None, REAL):
        raise UsageError(f"Published numbers stand beside real data, not beside {data}; leave out --data.")

    chosen = [
        card
        for card in cards
        if _belongs(card, suite)
        and protocol in (None, card["protocol"])
        and tier in (None, card["tier"])
        and pattern in (None, card["pattern"])
        and suite.slots.get(card["task"], card["pattern"]) == card["pattern"]
        and data in (None, kind_on_board(card, suite))
    ]
    groups = _groups(chosen, suite, pattern, any_data=data is None)
    if published and tables:  # a named table is shown alone, without boards that cannot have it
        groups = {group for group in groups if group[1:3] == ("full", REAL)}
    if tier in (None, "full") and data in (None, REAL):
        have = {group[3] for group in groups if group[1:3] == ("full", REAL)}
        groups |= {(protocol or "longspan", "full", REAL, one) for one in tables if one not in have}
    for one_protocol, one_tier, kind, one_pattern in sorted(groups, key=_order):
        shown = tables.get(one_pattern or "") if (one_tier, kind) == ("full", REAL) else None
        how: dict[str, Any] = {"data": kind, "published": shown, "conformance": conformance}
        yield board(cards, suite.under(one_pattern), one_protocol, one_tier, one_pattern, **how)


def _groups(
    cards: Sequence[Card], suite: Suite, pattern: str | None, *, any_data: bool
) -> set[tuple[str, str, str, str | None]]:
    """Protocol, tier, kind of data and pattern of every board; one of a suite with slots has several patterns."""

    def group(card: Card) -> tuple[str, str, str, str | None]:
        return card["protocol"], card["tier"], kind_on_board(card, suite), pattern if suite.slots else card["pattern"]

    groups = {group(card) for card in cards}
    if not any_data:
        return groups
    fetched = {group(card) for card in cards if not is_generated(card)}
    # Cards on generated data go on the board of stand-ins, if there is one.
    return {one for one in groups if one in fetched or (*one[:2], STANDIN, one[3]) not in groups}


def _belongs(card: Card, suite: Suite) -> bool:
    """Whether a board of the suite is about the task of the card, in the pattern of the card."""
    if suite.patterns and card["pattern"] not in suite.patterns:
        return False
    own = suite.under(card["pattern"])
    return card["task"] in (*own.tasks, *own.tasks_under(card["protocol"]))


def published_tables(suite: Suite, asked: str | None = None) -> dict[str, str]:
    """The published table of each pattern that has one: the one asked for by full or short name, else the default.

    Tasks that no suite describes have a table where a paper prints scores of each of them.

    >>> published_tables(suites.get("lra"), "v0")
    {'noncausal_self': 'lra-v0'}
    """
    if asked == "none":
        return {}
    printed = [(table.name, table.pattern) for table in tables_of(suite)]
    for pattern, part in suite.patterns.items():
        printed += [(table.name, pattern) for table in tables_of(part) if table.pattern == pattern]
    if not printed:
        return _leaderboards(suite, asked)
    found = {pattern: name for name, pattern in printed if asked in (None, name, name.removeprefix(f"{suite.name}-"))}
    if not found:
        there = ", ".join(dict.fromkeys(name for name, _ in printed))
        raise UsageError(f"No published table {asked!r} of {suite.name}; there are: {there}, none.")
    return found


def _leaderboards(suite: Suite, asked: str | None) -> dict[str, str]:
    owner = suite.published or suite.name
    tables = papers.for_suite(owner)
    short = PUBLISHED.get(suite.name) if asked is None else asked.removeprefix(f"{owner}-")
    if short is None:
        return {}
    if not tables:
        raise UsageError(f"Published table {asked!r} was asked for, but {suite.name} has none; leave out --published.")
    if short not in tables:
        raise UsageError(f"No published table {asked!r} of {suite.name}; there are: {', '.join(tables)}, none.")
    return {papers.load(tables[short]).pattern: tables[short]}


def suite_or_task(name: str, cards: Sequence[Card]) -> Suite:
    """A suite by name; else a suite of one task, which must occur in a suite or on a card."""
    if name in suites.names():
        return suites.get(name)
    tasks = {card["task"] for card in cards} | {task for suite in suites.SUITES.values() for task in suite.tasks}
    if name not in tasks:
        raise UsageError(f"No suite or task named {name!r}.{did_you_mean(name, [*suites.names(), *tasks])}")
    return suites_of([name], cards)[0]


def pattern_name(text: str) -> str:
    """A pattern by its name or its two letters, or several joined by "+"; the slot has the same rule, but needs torch.

    >>> pattern_name("CS"), pattern_name("CC+NS")
    ('causal_self', 'noncausal_self+causal_cross')
    """
    wanted = set()
    for word in text.split("+"):
        name = PATTERNS.get(word.strip().upper(), word.strip().lower())
        if name not in PATTERNS.values():
            raise UsageError(f"No pattern named {word!r}.{did_you_mean(word, PATTERNS.values())}")
        wanted.add(name)
    return "+".join(name for name in PATTERNS.values() if name in wanted)


def _order(group: tuple[str, str, str, str | None]) -> tuple:
    """By protocol, then from smoke to full, then by data, real first, then by pattern."""
    protocol, tier, data, pattern = group
    place = TIERS.index(tier) if tier in TIERS else len(TIERS)
    return protocol, place, tier, data != REAL, data, pattern_order(pattern or "")


def pattern_order(pattern: str) -> tuple[int, tuple[int, ...], str]:
    """NS, CS, NC, CC, then several at once."""
    known = list(PATTERNS.values())
    words = pattern.split("+")
    return len(words), tuple(known.index(word) if word in known else len(known) for word in words), pattern
