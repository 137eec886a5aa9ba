"""Operations of a computation: those of its products, transforms and running sums; a multiply-add is two.

    count_operations(lambda: layer(x))

Counted by running it once under torch's FLOP counter, with formulas for kernels that it does not know; elementwise work
is left out, as is usual where operations per second are quoted. The counter cannot see into compiled code and replayed
graphs, so the plain call is counted, which computes the same. A custom operator is counted once
`torch.utils.flop_counter.register_flop_formula` knows its formula.
"""

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from longspan.core.errors import UsageError
from longspan.kernels.flops import formulas


def count_operations(compute: Callable[[], Any]) -> int:
    """Run `compute` and count; a count of zero is refused, because it means that nothing could be counted."""
    counter = FlopCounterMode(display=False, custom_mapping=formulas())
    with counter:
        compute()
    found = counter.get_total_flops()
    if not found:
        raise UsageError(
            "No operations were counted: the call has no product, transform or running sum, or its kernels have no "
            "formula; register one with torch.utils.flop_counter.register_flop_formula."
        )
    return found
