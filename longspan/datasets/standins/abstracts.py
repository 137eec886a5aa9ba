"""Synthetic abstracts with invented terms of invented fields: label 1 if two are about the same field."""

import numpy as np

FIELDS = (
    ("zazik", "kozaz", "zikko", "kazkiz", "zokazi", "kizzok"),
    ("quxo", "xaquix", "oxquax", "quaxi", "xoqui", "axquo"),
    ("jowaj", "wijow", "jawwi", "wojji", "jujow", "wawij"),
    ("vyvo", "yvavy", "vovyv", "ivvy", "yvyvo", "vayv"),
)
_FORMS = (
    "We study {a}, {b} and {c}.",
    "We improve {a} by {b} or {c}.",
    "For {a} and {b} the gain over {c} is {n}.",
    "Unlike {a} or {b}, it needs no {c}.",
    "See {a}, {b} and {c} in section {n}.",
)
_PLAIN = ("models", "features", "training", "baselines", "annotation", "statistics", "sampling", "errors")


def make_pair(rng: np.random.Generator, length: int) -> tuple[bytes, bytes, int]:
    """Two abstracts of at most `length` bytes, and the label."""
    label = int(rng.integers(2))
    first = int(rng.integers(len(FIELDS)))
    second = first if label else (first + int(rng.integers(1, len(FIELDS)))) % len(FIELDS)
    return _abstract(rng, first, length), _abstract(rng, second, length), label


def _abstract(rng: np.random.Generator, field: int, length: int) -> bytes:
    """Sentences with terms of one field, words of no field, and now and then a term of another field."""
    aim = int(rng.integers(min(120, length), min(500, length) + 1))
    text = ""
    while len(text) < aim:
        words = {name: _word(rng, field) for name in "abc"}
        form = _FORMS[rng.integers(len(_FORMS))]
        text = f"{text} {form.format(n=rng.integers(2, 10), **words)}".strip()
    return text[:aim].encode()


def _word(rng: np.random.Generator, field: int) -> str:
    kind = rng.random()
    words = FIELDS[field] if kind < 0.6 else _PLAIN if kind < 0.75 else FIELDS[rng.integers(len(FIELDS))]
    return words[rng.integers(len(words))]
