"""Running top-k in Triton: a program goes along one row tile by tile and carries the k largest and the number chosen.

The k largest are k running maxima, each of which passes on what is smaller: with s_i the maximum of x_1 ... x_i,
x_i <- min(x_i, s_(i-1)). The number chosen becomes min(number + candidate_i, budget_i), and such functions compose to
min(number + a, b). Both are scans and both are read one position earlier, so a scan also carries its result without the
last element.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

TILE = 4_096
UNLIMITED = tl.constexpr(2**30)


@triton.jit
@no_type_check
def running_topk(x, budget, chosen, heads, n, budget_stride, k: tl.constexpr, K: tl.constexpr, T: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, K)
    largest, number = tl.full([K], float("-inf"), tl.float32), tl.full([], 0, tl.int32)
    lowest, unlimited = tl.full([T], float("-inf"), tl.float32), tl.full([T], UNLIMITED, tl.int32)
    for start in range(0, n, T):
        at = start + tl.arange(0, T)
        real = at < n
        numbers = tl.load(x + pair * n + at, mask=real, other=float("-inf"))
        smaller = numbers
        for i in tl.static_range(k):
            before = tl.max(tl.where(rank == i, largest, float("-inf")), axis=0)
            after = tl.maximum(tl.max(smaller, axis=0), before)
            _, earlier = tl.associative_scan((smaller, lowest), 0, _maximum)
            smaller = tl.minimum(smaller, tl.maximum(earlier, before))
            largest = tl.where(rank == i, after, largest)
        candidate = (numbers > smaller).to(tl.int32)
        allowed = tl.load(budget + pair // heads * budget_stride + at, mask=real, other=UNLIMITED)
        scanned = (candidate, allowed, candidate * 0, unlimited)
        add, most, add_before, most_before = tl.associative_scan(scanned, 0, _capped_sum)
        now = tl.minimum(number + add, most)
        tl.store(chosen + pair * n + at, (now > tl.minimum(number + add_before, most_before)).to(tl.uint8), mask=real)
        number = tl.max(now, axis=0)


@triton.jit
@no_type_check
def _maximum(a, a_before, b, b_before):
    """The maximum of two stretches, and the same without the last element of the second."""
    return tl.maximum(a, b), tl.maximum(a, b_before)


@triton.jit
@no_type_check
def _capped_sum(add, most, add_before, most_before, more, limit, more_before, limit_before):
    """min(. + add, most), then min(. + more, limit); and the same without the last element of the second."""
    return (add + more, tl.minimum(most + more, limit), add + more_before, tl.minimum(most + more_before, limit_before))
