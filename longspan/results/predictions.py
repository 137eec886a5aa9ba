"""What a model answered for each test example, in an untrusted `.npz` beside the card, and the score it gives.

    value, count, rows = score_of(path, "accuracy")

Never imports torch.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.core.errors import CorruptFile
from longspan.results import arrays

if TYPE_CHECKING:
    import numpy as np

RATIOS = {"mcd": ("mcd_cost", "made_frames")}  # scores that are the ratio of two sums over rows
LARGEST_LOSS = 345.0  # nats; e^345 is the largest perplexity below the largest number a card may hold


def labels_digest(labels: "np.ndarray") -> str:
    """The SHA-256 of class labels in the order of rows, as little-endian 64-bit integers."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def majority_rate(labels: "np.ndarray") -> float:
    """The share of the most frequent label."""
    import numpy as np

    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def rows(path: Path, *names: str) -> list["np.ndarray"]:
    """These arrays, each with a finite number for every row."""
    found = arrays.read(path, *names)
    for name, values in zip(names, found, strict=True):
        if values.ndim != 1:
            raise CorruptFile(f"{path.name}: {name} has {values.ndim} dimensions, and needs one number for each row.")
        if len(values) != len(found[0]) or not len(values):
            raise CorruptFile(
                f"{path.name}: {names[0]} has {len(found[0])} entries and {name} has {len(values)}; "
                "each needs one for every row."
            )
    return found


def whole_numbers(path: Path, name: str, values: "np.ndarray") -> "np.ndarray":
    """The array as signed integers of 64 bits."""
    if values.dtype.kind not in "iu" or values.max() > 2**63 - 1:
        raise CorruptFile(f"{path.name}: {name} must hold integers of at most 64 bits, found {values.dtype}.")
    return values.astype("int64")


def in_row_order(path: Path, columns: list["np.ndarray"]) -> list["np.ndarray"]:
    """The arrays sorted by the `row` of each entry, which must be 0, 1, 2, ... in some order; unchanged without it."""
    import numpy as np

    if "row" not in arrays.names_in(path):
        return columns
    (row,) = rows(path, "row")
    row = whole_numbers(path, "row", row)
    order = np.argsort(row, kind="stable")
    if len(row) != len(columns[0]) or not np.array_equal(row[order], np.arange(len(row))):
        raise CorruptFile(f"{path.name}: row must name each of {len(columns[0])} rows once.")
    return [values[order] for values in columns]


def labels_and_answers(path: Path) -> list["np.ndarray"]:
    """`label` and `prediction` in the order of rows."""
    label, prediction = rows(path, "label", "prediction")
    return in_row_order(path, [whole_numbers(path, "label", label), whole_numbers(path, "prediction", prediction)])


def by_example(path: Path, metric: str) -> "np.ndarray | None":
    """What each test example contributes to a score that is a plain mean, in the order of rows; None for others."""
    present = arrays.names_in(path)
    if metric == "accuracy" and {"label", "prediction"} <= present:
        label, prediction = labels_and_answers(path)
        return (label == prediction).astype(float)
    if metric not in present or "category" in present:
        return None
    (values,) = in_row_order(path, rows(path, metric))
    return values.astype(float)


def shares(path: Path, metric: str) -> "tuple[np.ndarray, np.ndarray] | None":
    """A numerator and a denominator for each row, in order: the score is the ratio of their sums. None if absent.

    For a perplexity the ratio is its logarithm. A mean of category means has no such ratio.
    """
    import numpy as np

    if (own := by_example(path, metric)) is not None:
        return own, np.ones(len(own))
    names = ("nats", "tokens") if metric == "perplexity" else RATIOS.get(metric, (f"{metric}_sum", f"{metric}_count"))
    if not set(names) <= arrays.names_in(path):
        return None
    added, counted = (values.astype(float) for values in in_row_order(path, rows(path, *names)))
    if counted.min() < 0 or not counted.any():
        raise CorruptFile(f"{path.name}: {names[1]} must be at least 0, and some row must have more.")
    return added, counted


def compact(found: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    """The same in fewer bytes: sorted by `row`, which is then left out, with integers as narrow as possible.

    Sorted labels and answers compress far better than those in the order of evaluation.
    """
    import numpy as np

    kept = {name: np.asarray(values) for name, values in found.items()}
    row = kept.get("row")
    if row is not None and row.ndim == 1 and row.dtype.kind in "iu" and all(_fits(one, row) for one in kept.values()):
        order = np.argsort(row, kind="stable")
        if np.array_equal(row[order], np.arange(len(row))):
            kept = {name: values[order] for name, values in kept.items() if name != "row"}
    return {name: _narrow(values) for name, values in kept.items()}


def _fits(values: "np.ndarray", row: "np.ndarray") -> bool:
    return values.ndim >= 1 and len(values) == len(row)


def _narrow(values: "np.ndarray") -> "np.ndarray":
    import numpy as np

    if values.dtype.kind not in "iu" or not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    kinds = ("u1", "u2", "u4") if low >= 0 else ("i1", "i2", "i4")
    fits = (kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    narrow = np.dtype(next(fits, values.dtype))
    return values.astype(narrow) if narrow.itemsize < values.dtype.itemsize else values


def score_of(path: Path, metric: str, *, labelled: bool = False) -> tuple[float, int, int] | None:
    """A score recomputed: its value, its count, and the number of rows; None if the file lacks its arrays.

    An accuracy comes from `label` and `prediction`, unless each row has its own and the examples have no classes
    (`labelled`: their labels are known, so that only these count); a perplexity from the `nats` and the
    `tokens` of each row, a ratio of sums from arrays `<metric>_sum` and `<metric>_count` or those of RATIOS, any other
    mean from an array of its name: where rows have a `category`, the mean of the category means.
    """
    import numpy as np

    present = arrays.names_in(path)
    if metric == "accuracy" and (labelled or metric not in present):
        label, prediction = labels_and_answers(path)
        return float(np.mean(label == prediction)), len(label), len(label)
    if metric == "perplexity":
        if not {"nats", "tokens"} <= present:
            return None
        nats, tokens = rows(path, "nats", "tokens")
        nats, tokens = in_row_order(path, [nats, whole_numbers(path, "tokens", tokens)])
        if tokens.min() < 0 or tokens.max() > (2**63 - 1) // len(tokens) or not tokens.any():
            raise CorruptFile(f"{path.name}: tokens must be counts of at least 0, and some row must have one.")
        count = int(tokens.sum())
        return math.exp(min(_sum(path, "nats", nats) / count, LARGEST_LOSS)), count, len(tokens)
    sums, counts = RATIOS.get(metric, (f"{metric}_sum", f"{metric}_count"))
    if {sums, counts} <= present:
        total, count = in_row_order(path, rows(path, sums, counts))
        if (whole := _sum(path, counts, count)) <= 0:
            raise CorruptFile(f"{path.name}: {counts} must add up to more than 0, found {whole:g}.")
        return _sum(path, sums, total) / whole, len(total), len(total)
    if metric not in present:
        return None
    (values,) = in_row_order(path, rows(path, metric))
    groups = [values] if "category" not in present else _by_category(path, values)
    means = [_sum(path, metric, own) / len(own) for own in groups]
    return sum(means) / len(means), len(values), len(values)


def _by_category(path: Path, values: "np.ndarray") -> list["np.ndarray"]:
    """The values of each category, which is a word or an integer for every row."""
    import numpy as np

    (category,) = arrays.read(path, "category", text=True)
    if category.shape != values.shape or category.dtype.kind not in "iuU":
        raise CorruptFile(f"{path.name}: category must be one word or integer for each of {len(values)} rows.")
    (category,) = in_row_order(path, [category])
    return [values[category == one] for one in np.unique(category)]


def _sum(path: Path, name: str, values: "np.ndarray") -> float:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.astype(np.float64).sum())
    if not math.isfinite(total):
        raise CorruptFile(f"{path.name}: {name} adds up to more than a number can be.")
    return total
