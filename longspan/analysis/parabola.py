"""A parabola by least squares, and whether its quadratic term is more than noise: a t-test of the coefficient.

    parabola([256, 512, 1024, 2048, 4096], memory).p      # 0.4: a straight line would do as well

The term is tested one-sided (does the curve bend upwards?) with as many degrees of freedom as there are points beyond
three. Values that are linear up to rounding leave meaningless residuals: a term that contributes less than ROUNDING of
the largest value counts as 0, whatever t is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 4  # points: three leave no degree of freedom
ROUNDING = 1e-9
LEVEL = 0.025  # the lower end of the 95 % interval of the coefficient lies above 0


@dataclass(frozen=True)
class Parabola:
    """a x^2 + b x + c, and the probability of an `a` at least as large if the truth is a straight line.

    `interval` is the 95 % interval of `a`: its lower end is above 0 where the curve bends upwards.
    """

    a: float
    b: float
    c: float
    p: float
    interval: tuple[float, float]

    @property
    def bends_upwards(self) -> bool:
        return self.p < LEVEL


def parabola(x: Sequence[float], y: Sequence[float]) -> Parabola:
    """The fit through at least FEWEST points.

    >>> parabola([1, 2, 3, 4, 5], [1, 4, 9, 16, 25.001]).bends_upwards
    True
    """
    assert len(x) >= FEWEST, f"{len(x)} points cannot tell a parabola from noise"
    longest, values = max(x), np.array(y, dtype=float)
    design = np.vander(np.array(x, dtype=float) / longest, 3)  # lengths up to 1: squares of tokens lose digits
    coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
    free = len(x) - 3
    variance = float(((values - design @ coefficients) ** 2).sum()) / free
    error = math.sqrt(variance * float(np.linalg.inv(design.T @ design)[0, 0]))
    bend = float(coefficients[0])
    if abs(bend) <= ROUNDING * float(np.abs(values).max()):
        p = 0.5
    else:
        p = upper_tail(bend / error, free) if error else float(bend < 0)
    a, b, c = map(float, coefficients / (longest**2, longest, 1))
    half = upper_quantile(free) * error / longest**2
    return Parabola(a, b, c, p, (a - half, a + half))


def upper_tail(t: float, free: int) -> float:
    """P(T > t) for Student's distribution with `free` degrees of freedom: the finite sum for integers.

    >>> round(upper_tail(2.228, 10), 3), round(upper_tail(12.706, 1), 3)
    (0.025, 0.025)
    """
    angle = math.atan2(t, math.sqrt(free))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = free % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, free, 2):
        total += term
        term *= square * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2


def upper_quantile(free: int) -> float:
    """The value that Student's t exceeds with a probability of LEVEL.

    >>> round(upper_quantile(3), 3), round(upper_quantile(10), 3)
    (3.182, 2.228)
    """
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, free) > LEVEL else (low, middle)
    return high
