"""Which runs may be averaged: those of one code, under one set of settings, in one precision, on the same data.

    kept, others = alike(cards)
    others[0]        # (card, "recipe.learning_rate 0.05, the board shows 0.03")

The newest card decides, and the others are rejected with what differs. Cards of a task of this package whose version or
settings are not those that the package has (`official.py`) decide only where no others are there:

- the version of a task (for a plug-in, its source) and its data, model and recipe settings: for all mechanisms of the
  fixed track alike, since runs under two recipes are not comparable; on the free track a mechanism may have a recipe of
  its own, and so may a twin of released code, which has the sizes it was released with;
- the code of a mechanism (`code_identity.py`) and the precision: for all tasks of a row alike, since their average
  must describe one thing;
- the form of a mechanism, where the protocol chooses its options by the task, and the data: for each task of a row.
  Boards note where rows come from different data.

What remains counts once per seed: data that were downloaded and a user's own copy of them may be the same bytes.

Protocols, tiers, kinds of data (`variant.py`) and overrides are kept apart throughout. The device and the number of
devices may differ: they decide the speed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from longspan.results.age import by_age, is_future
from longspan.results.card import Card, canonical
from longspan.results.code_identity import code_of, other_code, same_code
from longspan.results.official import is_known_version, is_official
from longspan.results.run_settings import decisive, difference
from longspan.results.variant import data_of


class Rule(NamedTuple):
    """Cards that share a key must agree with the card that is shown; `differs` says how a card deviates."""

    key: Callable[[Card], tuple]
    differs: Callable[[Card, Card], str | None]
    shown: Callable[[Sequence[Card]], Card] = lambda cards: cards[-1]  # the newest of cards sorted by age


def alike(cards: Iterable[Card], *, several_patterns: bool = False) -> tuple[list[Card], list[tuple[Card, str]]]:
    """The runs that may be averaged, oldest first, and each of the others with how it differs from the card shown.

    With `several_patterns` a row has cells of different patterns and kinds of data, but still one code and precision.
    """
    kept, others = by_age(cards), []
    for rule in _rules(_mixed_row if several_patterns else _row):
        keys = [rule.key(card) for card in kept]
        shown = {key: rule.shown(group) for key, group in _groups(kept, keys).items()}
        found = [(card, rule.differs(card, shown[key])) for card, key in zip(kept, keys, strict=True)]
        kept = [card for card, reason in found if reason is None]
        others += [(card, reason) for card, reason in found if reason is not None]
    return kept, others


def newest_measured(cards: Iterable[Card]) -> list[Card]:
    """Measurements that may be combined, oldest first: for a plug-in, only those of its newest code."""
    ordered = by_age(cards)
    newest = {_measured(card): code_of(card) for card in ordered}
    return [card for card in ordered if same_code(code_of(card), newest[_measured(card)])]


def _measured(card: Card) -> tuple:
    return card["procedure"], card["mechanism"], card["pattern"]


def _groups(cards: Iterable[Card], keys: Iterable[tuple]) -> dict[tuple, list[Card]]:
    groups: dict[tuple, list[Card]] = {}
    for card, key in zip(cards, keys, strict=True):
        groups.setdefault(key, []).append(card)
    return groups


def _overrides(card: Card) -> bytes:
    return canonical(card["overrides"]) if card["overrides"] else b""


def _board(card: Card) -> tuple:
    return card["protocol"], card["tier"], data_of(card), _overrides(card)


def row_mechanism(card: Card) -> str:
    """The mechanism string that a row stands for; the bare name where the protocol chooses the options per task."""
    return card["mechanism"].partition("(")[0] if card.get("preset") else card["mechanism"]


def _row(card: Card) -> tuple:
    return *_board(card), row_mechanism(card), card["pattern"]


def _mixed_row(card: Card) -> tuple:
    return card["protocol"], card["tier"], _overrides(card), row_mechanism(card)


def _column(card: Card) -> tuple:
    ranked = card["track"] == "fixed" and not card["fidelity"]
    return *(_board(card) if ranked else _row(card)), card["task"]


def _version(card: Card, shown: Card) -> str | None:
    own, other = card["task_version"], shown["task_version"]
    return None if own == other else f"version {own} of the task, the board shows version {other}"


def _task_code(card: Card, shown: Card) -> str | None:
    same = card["settings"].get("task_sha256") == shown["settings"].get("task_sha256")
    return None if same else f"other code of {card['task']}"


def _form(card: Card, shown: Card) -> str | None:
    own, other = card["mechanism"], shown["mechanism"]
    return None if own == other else f"run as {own}, the board shows {other}"


def _form_shown(cards: Sequence[Card]) -> Card:
    """The newest card in the form of the protocol, else the newest."""
    return next((card for card in reversed(cards) if card.get("preset")), cards[-1])


def _again(card: Card, shown: Card) -> str | None:
    return None if card is shown else "another run of the seed is newer"


def _settings(card: Card, shown: Card) -> str | None:
    return difference(decisive(card), decisive(shown))


def _code(card: Card, shown: Card) -> str | None:
    return other_code(card["mechanism"], code_of(card), code_of(shown))


def _precision(card: Card, shown: Card) -> str | None:
    own, other = card["settings"]["precision"], shown["settings"]["precision"]
    return None if own == other else f"precision {own}, the board shows {other}"


def _data(card: Card, shown: Card) -> str | None:
    own, other = card["dataset"]["sha256"], shown["dataset"]["sha256"]
    return None if own == other else f"other data (hash {own[:12]}, the board shows {other[:12]})"


def _rules(row: Callable[[Card], tuple]) -> tuple[Rule, ...]:
    """The rules in order; `row` is the key of the cards in one row."""
    return (
        Rule(
            lambda card: (*_board(card), card["task"]),
            _version,
            lambda cards: max(
                cards, key=lambda card: (not is_future(card), is_known_version(card), card["task_version"])
            ),
        ),
        Rule(lambda card: (*_board(card), card["task"]), _task_code),
        Rule(_column, _settings, lambda cards: next(filter(is_official, reversed(cards)), cards[-1])),
        Rule(lambda card: (*row(card), card["task"]), _form, _form_shown),
        Rule(lambda card: (*row(card), card["mechanism"]), _code),
        Rule(row, _precision),
        Rule(lambda card: (*row(card), card["task"]), _data),
        Rule(lambda card: (*row(card), *(card[name] for name in ("task", "seed", "track", "fidelity"))), _again),
    )
