"""What the protocols of this package prescribe, and whether a card that declares no other settings has these.

    undeclared(card)        # "recipe.batch_size 64, the protocol has 32"; None where the card says what it changed

Only tasks of the package are known, in the version that it has today, from the shipped catalogue.
"""

import functools
from collections.abc import Mapping
from typing import Any

from longspan.results import catalogue
from longspan.results.card import Card
from longspan.results.run_settings import decisive, difference


@functools.cache
def _tasks() -> Mapping[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in catalogue.read(catalogue.SHIPPED)["tasks"]}


def is_known_version(card: Card) -> bool:
    """Whether this package has the task in this version or a later one; so it is for tasks that it does not have."""
    task = _tasks().get(card["task"])
    return task is None or card["task_version"] <= task["version"]


def prescribed(card: Card) -> dict[str, str] | None:
    """The decisive settings of the card's protocol; None if it is not of this package, or of another version."""
    task = _tasks().get(card["task"])
    if task is None or "task_sha256" in card["settings"] or card["task_version"] != task["version"]:
        return None
    found = task["settings"].get(f"{card['protocol']}/{card['tier']}")
    return None if found is None else decisive({"settings": found})


def is_official(card: Card) -> bool:
    """Whether a card has exactly the settings of its protocol."""
    return prescribed(card) == decisive(card)


def can_judge(card: Card) -> bool:
    """Whether the protocol is known here and gives the value of every setting that the card has, and of no other."""
    known = prescribed(card)
    return known is not None and known.keys() == decisive(card).keys() and not _has_own_rules(card)


def undeclared(card: Card) -> str | None:
    """In which settings a card differs from its protocol without saying so, if that can be judged."""
    known = prescribed(card)
    if known is None or not can_judge(card):
        return None
    own = {name: text for name, text in decisive(card).items() if name not in card["overrides"]}
    return difference(own, {name: known[name] for name in known if name not in card["overrides"]}, "the protocol has")


def _has_own_rules(card: Card) -> bool:
    """Whether the protocol changes settings for this mechanism."""
    name = card["mechanism"].partition("(")[0]
    for plain, preset in _tasks()[card["task"]]["presets"].get(card["protocol"], {}).items():
        if (preset["changes"] or preset["smoke"]) and name in (plain, str(preset["mechanism"]).partition("(")[0]):
            return True
    return False
