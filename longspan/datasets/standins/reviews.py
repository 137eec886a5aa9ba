"""Synthetic reviews of invented films: label 1 if good words outnumber bad ones, where "not" inverts a word.

Opposite opinions and sentences without an opinion are mixed in.
"""

from collections.abc import Sequence

import numpy as np

GOOD = ("splendid", "moving", "witty", "tender", "gripping", "radiant", "charming", "superb", "vivid", "graceful")
BAD = ("dreary", "clumsy", "hollow", "tedious", "shallow", "stale", "awful", "noisy", "lifeless", "dull")
_THINGS = ("plot", "cast", "score", "camera", "dialogue", "ending", "lead", "pacing", "humour", "costume", "script")
_FILMS = ("Harbour", "Lantern", "Orchard", "Winter", "Meridian", "Paper", "Copper", "Salt", "Ember", "Quarry")
_SAYINGS = (
    "The {thing} of {film} {film2} is {word}.",
    "I found the {thing} {word}, and I saw it twice.",
    "What a {word} {thing}!",
    "My neighbour called the {thing} {word}<br /><br />and left.",
    "By the second hour its {thing} had become {word}.",
)
_FILLERS = (
    "It was raining when we came out.",
    "It runs for about two hours.",
    "{film} {film2} was shot in a small town.",
    "We sat in the third row.",
    "They also made {film} {film2} some years before.",
)


def make_review(rng: np.random.Generator, length: int) -> tuple[bytes, int]:
    """A review of at most `length` bytes, and its label."""
    wanted = int(rng.integers(2))
    room = int(rng.integers(min(150, length), min(900, length) + 1)) - 11  # a last word must fit
    text, balance = "", 0
    while True:
        sentence, mind = _sentence(rng, good=rng.random() < (0.8 if wanted else 0.2))
        if len(text) + len(sentence) + 1 > room:
            break
        text, balance = f"{text} {sentence}".strip(), balance + mind
    if balance == 0:  # no opinion, or a draw: one word decides
        text = f"{text} {_one(rng, GOOD if wanted else BAD)}".strip()
        balance = 1 if wanted else -1
    return text[:length].encode(), int(balance > 0)


def _sentence(rng: np.random.Generator, good: bool) -> tuple[str, int]:
    """A sentence, and +1, -1 or 0 for its opinion."""
    opinion = rng.random() < 0.75
    turned = rng.random() < 0.1
    word = _one(rng, GOOD if good != turned else BAD)
    form = _one(rng, _SAYINGS if opinion else _FILLERS)
    names = {"thing": _one(rng, _THINGS), "film": _one(rng, _FILMS), "film2": _one(rng, _FILMS)}
    sentence = form.format(word=f"not {word}" if turned else word, **names)
    return sentence, (1 if good else -1) if opinion else 0


def _one(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
