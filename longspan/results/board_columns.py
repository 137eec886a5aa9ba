"""The columns of a board, the tasks behind each, and the row a card belongs to."""

from collections import defaultdict
from collections.abc import Iterable

from longspan import suites
from longspan.results.alike import row_mechanism
from longspan.results.card import Card
from longspan.results.variant import REAL, STANDIN, data_of
from longspan.suites import Suite

SEVERAL_PATTERNS = "by task"  # the pattern of a row whose cells have different ones


class Columns:
    """The columns of a board under one protocol, and the tasks behind each."""

    def __init__(self, suite: Suite, protocol: str):
        self.suite, self.behind = suite, suite.sources(protocol)
        self.of = {task: column for column, tasks in self.behind.items() for task in tasks}
        self.notes = [
            f"{suites.heading(one.task)}: {one.note}."
            for one in suite.best_of
            if protocol in one.protocols and one.note
        ]


def kind_on_board(card: Card, suite: Suite) -> str:
    """The kind of data of the board on which a suite shows a card."""
    kind = data_of(card)
    return REAL if kind == STANDIN and card["task"] in suite.standins else kind


def is_on_board(card: Card, suite: Suite, data: str) -> bool:
    """Whether a suite shows a card on its board of this kind of data; that of stand-ins shows generated tasks too."""
    return kind_on_board(card, suite) == data or (data == STANDIN and is_generated(card))


def is_generated(card: Card) -> bool:
    return card["dataset"]["variant"] == "generated"


def row_key(card: Card, suite: Suite) -> tuple[str, str]:
    return row_mechanism(card), SEVERAL_PATTERNS if suite.slots else card["pattern"]


def by_row(cards: Iterable[Card], suite: Suite) -> dict[tuple[str, str], list[Card]]:
    rows: dict[tuple[str, str], list[Card]] = defaultdict(list)
    for card in cards:
        rows[row_key(card, suite)].append(card)
    return rows


def common_columns(cards: Iterable[Card], columns: Columns) -> tuple[str, ...]:
    """One column for each task that every row of the board has run: the only ones over which speeds may be compared.

    The best of several tasks may be a different one in each row, so speeds in that column are not comparable.
    """
    good = (card for card in cards if card["status"] == "ok")
    ran = [{card["task"] for card in own} for own in by_row(good, columns.suite).values()]
    everywhere = set.intersection(*ran) if ran else set()
    suite, behind = columns.suite, columns.behind
    each = [column for column in a_column_each(suite) if suite.measures or len(behind[column]) == 1]
    return tuple(column for column in each if {*behind[column]} <= everywhere)


def a_column_each(suite: Suite) -> tuple[str, ...]:
    """The first column of every task: all its metrics come from the same runs."""
    return tuple({suite.measure(column).settings: column for column in reversed(suite.columns)}.values())[::-1]
