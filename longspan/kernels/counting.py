"""Where a kernel says how many operations it does, for torch's counter, which knows torch's own operators alone.

@counts(torch.ops.longspan.bucketed)
def _(z, v, order, *rest, **options): ...          # gets shapes in place of tensors; a multiply-add is two
"""

from collections.abc import Callable
from typing import Any

FORMULAS: dict[Any, Callable[..., int]] = {}


def counts(operation: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Enter a formula for an operator; given its arguments, with shapes for tensors, it returns the operations."""

    def enter(formula: Callable[..., int]) -> Callable[..., int]:
        FORMULAS[operation] = formula
        return formula

    return enter
