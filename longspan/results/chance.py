"""Above chance: above the majority-class rate of a test set by three standard errors of a guess at that rate."""

import math

from longspan.suites import Measure

CHANCE_ERRORS = 3.0


def is_above_chance(value: float, chance: float | None, count: int, higher_is_better: bool = True) -> bool | None:
    """Whether a rate lies above the majority-class rate by three standard errors; None where chance is not known.

    >>> is_above_chance(0.53, 0.5, 2000), is_above_chance(0.54, 0.5, 2000)
    (False, True)
    """
    if chance is None or count < 1 or not 0 <= chance <= 1 or not higher_is_better:
        return None
    return value - chance > CHANCE_ERRORS * math.sqrt(chance * (1 - chance) / count)


def is_above(value: float, chance: float | None, count: int, measure: Measure) -> bool | None:
    """Whether a score is above chance; if it is not a rate, chance is a baseline without a sampling error."""
    if measure.metric == "accuracy":
        return is_above_chance(value, chance, count, measure.higher_is_better)
    return None if chance is None else value > chance if measure.higher_is_better else value < chance
