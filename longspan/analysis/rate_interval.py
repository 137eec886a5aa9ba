"""The 95 % interval of an accuracy, over the sampling of test examples and, if there are several, of seeds."""

import math
import statistics
from collections.abc import Sequence


def rate_interval(values: Sequence[float], count: int) -> tuple[float, float]:
    """The interval of the mean over seeds that answered the same `count` examples, clipped to 0 and 1.

    >>> rate_interval([0.5], 10_000)
    (0.4902, 0.5098)
    """
    mean = statistics.fmean(values)
    variance = max(0.0, mean * (1 - mean)) / max(1, count)
    if len(values) > 1:
        variance += statistics.variance(values) / len(values)
    half = 1.96 * math.sqrt(variance)
    return round(max(0.0, mean - half), 12), round(min(1.0, mean + half), 12)


def in_percent(ends: tuple[float, float] | None) -> str:
    """
    >>> in_percent((0.3618, 0.38)), in_percent(None)
    ('36.18 to 38.00', '–')
    """
    return "–" if ends is None else f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}"
