"""Which card is the newest: cards in order of creation, with those dated in the future sorted first.

Otherwise a card from a wrong clock, or one edited by hand to 2999, would supersede every other card for good.
"""

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from longspan.results.card import Card, cell

CLOCK_SKEW = timedelta(minutes=5)  # between machines that set their clocks by the network


def is_future(card: Card) -> bool:
    """Whether a card is dated further in the future than clock skew explains."""
    return datetime.fromisoformat(card["created"]) - datetime.now(UTC) > CLOCK_SKEW


def by_date(cards: Iterable[Card]) -> list[Card]:
    """Oldest first, with cards from the future counted as oldest; cards with the same date keep their input order."""
    return [card for _, card in _dated(cards)]


def by_age(cards: Iterable[Card]) -> list[Card]:
    """Like `by_date`, but cards with the same date also get a fixed order, whatever the input order."""
    moments = ([card for _, card in group] for _, group in itertools.groupby(_dated(cards), key=lambda pair: pair[0]))
    return [card for one in moments for card in (sorted(one, key=_order) if len(one) > 1 else one)]


def _dated(cards: Iterable[Card]) -> list[tuple[tuple[bool, datetime], Card]]:
    """Each card after its sort key, sorted by it; each date is parsed once."""
    now = datetime.now(UTC)
    made = ((datetime.fromisoformat(card["created"]), card) for card in cards)
    return sorted((((date - now <= CLOCK_SKEW, date), card) for date, card in made), key=lambda pair: pair[0])


def _order(card: Card) -> tuple:
    return cell(card), card["sha256"]
