"""Synthetic reports of invented events, several of each, and a summary of what they agree on.

Every report of an event names some of its facts among sentences that say nothing; together they name all of them.
"""

from collections.abc import Sequence

import numpy as np

_KINDS = ("flood", "fire", "storm", "quake", "strike", "parade", "heatwave", "blackout")
_PLACES = (
    "Ardenvik",
    "Belmora",
    "Corvale",
    "Dunwick",
    "Estrana",
    "Fallowby",
    "Gravena",
    "Hollin",
    "Istmere",
    "Jorvale",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_COUNTS = ("three", "seven", "nine", "twelve", "twenty", "forty", "sixty", "ninety")
_NAMES = ("Abel", "Brandt", "Castor", "Delia", "Emmet", "Farah", "Goran", "Hedda")
_SAYINGS = {  # sentences that can state each fact
    "kind": ("The {kind} came without warning.", "Nobody had expected a {kind}."),
    "place": ("People in {place} were surprised.", "All of {place} talks of it."),
    "day": ("It began on {day}.", "By {day} it was over."),
    "count": ("At least {count} people were hurt.", "The number of injured rose to {count}."),
    "name": ("Mayor {name} thanked the helpers.", "A speech by mayor {name} was heard."),
}
_FILLERS = (
    "More is not known yet.",
    "The weather was mild.",
    "Shops opened as usual.",
    "A meeting will follow.",
    "Roads stayed open.",
)
_SUMMARY = "A {kind} in {place} on {day} hurt {count} people, mayor {name} said."


def make_cluster(rng: np.random.Generator) -> tuple[list[str], str]:
    """Two or three reports of one event, and their summary."""
    facts = {
        name: _one(rng, words) for name, words in zip(_SAYINGS, (_KINDS, _PLACES, _DAYS, _COUNTS, _NAMES), strict=True)
    }
    reports: list[list[str]] = [[] for _ in range(int(rng.integers(2, 4)))]
    for forms in _SAYINGS.values():
        for report in rng.permutation(len(reports))[: int(rng.integers(1, len(reports) + 1))]:
            reports[report].append(_one(rng, forms).format(**facts))
    for report in reports:
        report.append(_one(rng, _FILLERS))
        rng.shuffle(report)
    return [" ".join(report) for report in reports], _SUMMARY.format(**facts)


def _one(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
