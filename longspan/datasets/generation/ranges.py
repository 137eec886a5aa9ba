"""What arrays must satisfy besides their hash: offsets inside their texts, labels of known classes, equal counts.

NumPy would silently count a negative offset from the end and clip one that is too large.
"""

from collections.abc import Iterator, Mapping

import numpy as np

FLAT = ("tokens", "text", "pieces")  # what `starts` are offsets into
BLOCK = 1 << 24  # values checked at a time

Arrays = Mapping[str, np.ndarray]


def count_faults(arrays: Arrays, counts: Mapping[str, int]) -> Iterator[str]:
    """Splits whose number of examples is not what the manifest says; reads only shapes."""
    for split, count in counts.items():
        rows = [len(arrays[name]) for part in ("labels", "numbers", "pairs") if (name := f"{split}.{part}") in arrays]
        if rows and any(found != count for found in rows):
            yield f"{split} should have {count} examples, found {rows[0]}"
        if (starts := arrays.get(f"{split}.starts")) is not None and len(starts) - 1 not in (count, 2 * count):
            yield f"{split}.starts should have the edges of {count} examples, found {len(starts)}"


def range_faults(arrays: Arrays, *, classes: int, vocabulary: int) -> Iterator[str]:
    """Values out of range, a few words each; `classes` or `vocabulary` of 0 sets no limit. Reads everything once."""
    for name, array in arrays.items():
        group, _, part = name.rpartition(".")
        if part == "starts":
            yield from _edge_faults(name, array, arrays, group)
        elif part == "labels" and classes:
            yield from _value_faults(name, array, classes)
        elif part == "tokens" and vocabulary:
            yield from _value_faults(name, array, vocabulary)
        elif part == "pairs":
            yield from _value_faults(name, array, len(arrays.get("texts.starts", ())) - 1)
    yield from _series_faults(arrays)


def _edge_faults(name: str, edges: np.ndarray, arrays: Arrays, group: str) -> Iterator[str]:
    flat = next((arrays[f"{group}.{part}"] for part in FLAT if f"{group}.{part}" in arrays), None)
    if flat is None or flat.ndim != 1 or edges.ndim != 1 or edges.dtype != np.int64 or not len(edges):
        yield f"{name} should be int64 offsets into a flat array"
    elif edges[0] != 0 or edges[-1] != len(flat) or np.any(edges[1:] < edges[:-1]):
        yield f"{name} should rise from 0 to {len(flat)}, found offsets from {edges.min()} to {edges.max()}"


def _value_faults(name: str, array: np.ndarray, limit: int) -> Iterator[str]:
    if not np.issubdtype(array.dtype, np.integer):
        yield f"{name} should be integers, found {array.dtype}"
    elif np.iinfo(array.dtype).max < limit and np.iinfo(array.dtype).min == 0:
        return  # cannot be out of range
    else:
        flat = array.reshape(-1)
        for first in range(0, len(flat), BLOCK):
            block = flat[first : first + BLOCK]
            low, high = int(block.min()), int(block.max())
            if low < 0 or high >= limit:
                yield f"{name} should be 0 .. {limit - 1}, found {low if low < 0 else high}"
                return


def _series_faults(arrays: Arrays) -> Iterator[str]:
    """Faults in the rows, dates and borders of a time series."""
    if not {"values", "seconds", "borders"} <= arrays.keys():
        return
    values, seconds, borders = (arrays[name] for name in ("values", "seconds", "borders"))
    if values.ndim != 2 or seconds.shape != values.shape[:1] or borders.shape != (3, 2):
        yield "values, seconds and borders should be [rows columns], [rows] and [3 2]"
    elif not np.isfinite(values).all() or np.any(np.diff(seconds) <= 0):
        yield "values should be finite and dates should rise"
    elif borders[0, 0] < 0 or borders.max() > len(values) or np.any(np.diff(borders.reshape(-1)) < 0):
        yield f"borders should rise from 0 to at most {len(values)}, found {borders.tolist()}"
