"""Cards that may be compared, in the order in which the site shows them."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan import suites
from longspan.results import collect
from longspan.results.alike import alike
from longspan.results.board import board, suites_of
from longspan.results.board_types import USUAL_PATTERN, Board
from longspan.results.card import Card
from longspan.results.variant import REAL, STANDIN, data_of, in_words

TIERS = ("full", "lite", "smoke")


@dataclass(frozen=True)
class BoardGroup:
    """Cards that may be compared: of one protocol, tier, pattern, kind of data, suite, and code of each mechanism."""

    protocol: str
    tier: str
    data: str
    board: Board
    cards: tuple[Card, ...]

    @property
    def anchor(self) -> str:
        slots = [] if self.board.pattern in (None, USUAL_PATTERN) else [self.board.pattern]
        other = [] if self.data == REAL else [self.data]
        return slug("-".join([self.board.suite.name, self.protocol, self.tier, *slots, *other]))

    @property
    def pattern(self) -> str:
        return self.board.pattern or ""

    @property
    def standin(self) -> bool:
        return self.data == STANDIN

    @property
    def data_in_words(self) -> str:
        """What a reader must know about the data; nothing if they are those of the task."""
        return in_words(self.data)


def board_groups(cards: list[Card], conformance: Sequence[Mapping[str, Any]]) -> list[BoardGroup]:
    keyed: dict[tuple[str, str, str, str], list[Card]] = defaultdict(list)
    for card in cards:
        keyed[card["protocol"], card["tier"], data_of(card), card["pattern"]].append(card)

    def order(key: tuple[str, str, str, str]) -> tuple:
        protocol, tier, data, pattern = key
        place = TIERS.index(tier) if tier in TIERS else len(TIERS)
        kind = data == STANDIN, data != REAL, data
        return *kind, place, protocol != "longspan", protocol, tier, collect.pattern_order(pattern)

    groups = []
    for key in sorted(keyed, key=order):
        protocol, tier, data, pattern = key
        official = (tier, data) == ("full", REAL)
        for suite in _suites_for(keyed[key], official, protocol, pattern):
            shown_here = {*suite.tasks, *suite.tasks_under(protocol)}
            own = tuple(card for card in keyed[key] if card["task"] in shown_here)
            table = collect.published_tables(suite).get(pattern) if official else None
            told = {"data": data, "published": table, "conformance": conformance}
            view = board(own, suite, protocol, tier, pattern, **told)
            groups.append(BoardGroup(protocol, tier, data, view, tuple(alike(own)[0])))
    return groups


def _suites_for(cards: Sequence[Card], official: bool, protocol: str, pattern: str) -> list[suites.Suite]:
    """Suites that show every task once. Full runs on real data stand beside published rows, however few they are.

    A board of several metrics is added to those of its tasks, which say more about each, if it can show two tasks.
    """
    tasks, chosen = {card["task"] for card in cards}, []
    several = [suite.patterns[pattern] for suite in suites.SUITES.values() if pattern in suite.patterns]
    complete = [{m.settings for m in suite.measures if tasks >= {*m.settings}} for suite in several]
    beside = [suite for suite, filled in zip(several, complete, strict=True) if len(filled) > 1]
    for suite in suites.SUITES.values():
        of_suite = {*suite.tasks, *suite.tasks_under(protocol)}
        if official and not suite.patterns and tasks & of_suite and collect.published_tables(suite):
            chosen.append(suite)
            tasks = tasks - of_suite
    return [*chosen, *beside, *(_suite_for(alike, protocol) for alike in suites_of(sorted(tasks), cards))]


def _suite_for(alike: suites.Suite, protocol: str) -> suites.Suite:
    """The smallest suite that has all the tasks and is at least half filled by them, else just their list."""
    fitting = [
        suite
        for suite in suites.SUITES.values()
        if set(alike.tasks) <= set(suite.tasks_under(protocol))
        and 2 * len(alike.tasks) >= len(suite.tasks)
        and suite.metric == alike.metric
        and not suite.patterns
        and not suite.slots
    ]
    return min(fitting, key=lambda suite: len(suite.tasks)) if fitting else alike


def once(groups: Sequence[BoardGroup]) -> list[BoardGroup]:
    """The groups without boards of several metrics, whose cards are on boards of their tasks too."""
    return [group for group in groups if not group.board.suite.measures]


def slug(text: str) -> str:
    """A file name that is safe everywhere and different for different texts."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:60]
    return plain if plain and plain == text else f"{plain or 'page'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
