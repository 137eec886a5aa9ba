"""Synthetic novels from a small grammar: the people and the place of a book are named at its start and repeated.

A model that looks back far enough knows the names; one that does not must guess among all of them. Lines end in CR LF
and the last one is `*** `, as in PG-19.
"""

import textwrap
from collections.abc import Sequence

import numpy as np

_PEOPLE = ("Adela", "Bertram", "Cosima", "Dorian", "Elspeth", "Fabian", "Gwendolen", "Horace", "Isolde", "Jasper")
_PLACES = ("Applewick", "Brackmoor", "Cold Harbour", "Dunmere", "Eastfold", "Fallowby", "Greywater", "Highcombe")
_THINGS = ("a lantern", "the old clock", "a letter", "the silver key", "a basket of plums", "the map", "a violin")
_SAID = ("said", "answered", "whispered", "replied")
_WEATHER = ("rain", "fog", "snow", "sunlight", "wind")
_FORMS = (
    "{a} came to {p} with {t}, and {b} was not there.",
    '"Where is {t2}?" {s} {a}.',
    '"I left it at {p}," {s} {b}, and the {w} went on.',
    "In the {w} of that year {a} thought of {b} and of {t}.",
    "Nobody in {p} knew that {b} had hidden {t2}.",
    "{a} and {b} walked from {p} to the sea and back.",
    "The {w} fell upon {p} for {n} days.",
)


def make_novel(rng: np.random.Generator, size: int) -> bytes:
    """A book of about `size` bytes."""
    people, place = rng.permutation(len(_PEOPLE))[:2], _one(rng, _PLACES)
    a, b = (_PEOPLE[i] for i in people)
    lines = [f"{a.upper()} OF {place.upper()}", ""]
    chapter, written = 0, 0
    while written < size:
        chapter += 1
        paragraph = " ".join(_sentence(rng, a, b, place) for _ in range(int(rng.integers(4, 9))))
        lines += [f"CHAPTER {chapter}", "", *textwrap.wrap(paragraph, 70), ""]
        written += len(paragraph) + 20
    return ("\r\n".join(lines) + "\r\n*** ").encode()


def _sentence(rng: np.random.Generator, a: str, b: str, place: str) -> str:
    if rng.random() < 0.5:
        a, b = b, a
    words = {"t": _one(rng, _THINGS), "t2": _one(rng, _THINGS), "s": _one(rng, _SAID), "w": _one(rng, _WEATHER)}
    return _one(rng, _FORMS).format(a=a, b=b, p=place, n=int(rng.integers(2, 10)), **words)


def _one(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
