"""Texts as characters instead of bytes: ids come from a vocabulary of the training split, as in S4.

Id 0 is any character outside the vocabulary; the others are the characters that occur at least `least` times in the
training texts, in the order of their code points. An id is a byte, so there are at most 255; if there are more, the
most frequent are kept. Texts are truncated to `length` characters before counting.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from longspan.datasets.base import Split

Tokens = Literal["bytes", "characters"]
MOST = 255


def in_characters(splits: Mapping[str, Split], length: int, least: int) -> dict[str, Split]:
    """The same examples with an id for each character, up to `length` of them."""
    decoded = {name: _decoded(split, length) for name, split in splits.items()}
    vocabulary = _vocabulary(decoded["train"].tokens, least)
    return {
        name: Split(_ids(split.tokens, vocabulary), split.starts, split.stops, split.labels)
        for name, split in decoded.items()
    }


def _decoded(split: Split, length: int) -> Split:
    """Code points, each text once, however many examples share it."""
    starts, first, text = np.unique(split.starts, return_index=True, return_inverse=True)
    stops = np.asarray(split.stops).ravel()[first]
    codes = [_codes(split.tokens[start:stop])[:length] for start, stop in zip(starts, stops, strict=True)]
    edges = np.concatenate([[0], np.cumsum([len(code) for code in codes])]).astype(np.int64)
    text = text.reshape(np.shape(split.starts))
    return Split(np.concatenate(codes), edges[text], edges[text + 1], split.labels)


def _codes(text: np.ndarray) -> np.ndarray:
    """Code points; a text that was cut within a character ends with the replacement character."""
    return np.frombuffer(text.tobytes().decode(errors="replace").encode("utf-32-le"), np.uint32)


def _vocabulary(codes: np.ndarray, least: int) -> np.ndarray:
    found, counts = np.unique(codes, return_counts=True)
    found, counts = found[counts >= least], counts[counts >= least]
    return np.sort(found[np.argsort(-counts, kind="stable")[:MOST]])


def _ids(codes: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    place = np.searchsorted(vocabulary, codes)
    known = np.append(vocabulary, np.iinfo(np.uint32).max)[place] == codes  # no code point is that high
    return np.where(known, place + 1, 0).astype(np.uint8)
