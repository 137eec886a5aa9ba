"""Which card is the newest: cards in the order of their making, those dated in the future first of all.

A wrong clock, or a hand that writes 2999, would otherwise supersede every other card for good.
"""

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from longspan.results.card import Card, cell

CLOCK_SKEW = timedelta(minutes=5)  # between machines that set their clocks by the network


def is_future(card: Card, now: datetime | None = None) -> bool:
    """Whether a card is dated later than any run that has ended can be."""
    return datetime.fromisoformat(card["created"]) - (now or datetime.now(UTC)) > CLOCK_SKEW


def by_date(cards: Iterable[Card]) -> list[Card]:
    """Oldest first, a card from the future counting as the oldest; cards of one moment stay as they came."""
    return [card for _, card in _dated(cards)]


def by_age(cards: Iterable[Card]) -> list[Card]:
    """The same, and cards of one moment have a fixed order too, however they came."""
    moments = ([card for _, card in group] for _, group in itertools.groupby(_dated(cards), key=lambda pair: pair[0]))
    return [card for one in moments for card in (sorted(one, key=_order) if len(one) > 1 else one)]


def _dated(cards: Iterable[Card]) -> list[tuple[tuple[bool, datetime], Card]]:
    """Each card after its place in time, by which they are sorted; a date is read once."""
    now = datetime.now(UTC)
    made = ((datetime.fromisoformat(card["created"]), card) for card in cards)
    return sorted((((date - now <= CLOCK_SKEW, date), card) for date, card in made), key=lambda pair: pair[0])


def _order(card: Card) -> tuple:
    return cell(card), card["sha256"]
