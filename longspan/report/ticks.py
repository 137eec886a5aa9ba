"""Ticks of logarithmic axes, as a mapping from value to text."""

import math
from collections.abc import Iterable
from itertools import pairwise

MOST = 7  # ticks of an axis of lengths
MOST_VALUES = 20  # of an axis of values, which may span hundreds of powers of ten


def length_ticks(lengths: Iterable[float]) -> dict[float, str]:
    """A tick for each length that is not too near the next one, every second where there are many.

    >>> length_ticks([8192, 12288, 16384])
    {8192: '8K', 16384: '16K'}
    """
    found = sorted(set(lengths))
    crowded = {length for length, after in pairwise(found) if after < 1.4 * length}
    chosen = [length for length in found if length not in crowded]
    return {length: length_text(length) for length in chosen[:: 2 if len(chosen) > MOST else 1]}


def length_text(length: float) -> str:
    """
    >>> length_text(65536), length_text(256), length_text(1000)
    ('64K', '256', '1,000')
    """
    return f"{length / 1024:.0f}K" if length >= 1024 and length % 1024 == 0 else f"{length:,.0f}"


def value_ticks(values: Iterable[float | None]) -> dict[float, str]:
    """A tick at round values; a logarithmic axis has none for what is not above 0."""
    drawn = [value for value in values if value is not None and 0 < value < math.inf]
    found = round_values(drawn) if drawn else []
    return {value: f"{value:,.10g}" for value in found[:: 1 + len(found) // MOST_VALUES]}


def round_values(values: list[float]) -> list[float]:
    """Powers of ten around the values, also 2 and 5 times these where they span less than two, else equal ratios.

    >>> round_values([3.0, 40.0])
    [2.0, 5.0, 10.0, 20.0, 50.0]
    >>> round_values([210.0, 300.0])
    [210.0, 230.0, 250.0, 270.0, 300.0]
    """
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 100 else (1,)
    every = [float(f"{step}e{decade}") for decade in decades for step in steps]
    if low < high and sum(low <= value <= high for value in every) < 2:
        return sorted({float(f"{low * (high / low) ** (step / 4):.2g}") for step in range(5)})
    return [value for value in every if low / 2 <= value <= 2 * high] or every
