"""Records in Triton: a program goes along one row tile by tile, and carries the largest so far and the number chosen.

A level keeps the largest and hands on what is smaller to the next one: with s_i the largest of x_1 ... x_i, level by
level x_i <- min(x_i, s_(i-1)). What is handed on last is the smallest that is kept, or less than it. The number chosen
becomes min(number + record_i, budget_i), and such functions, one after the other, are again min(number + a, b). Both
are scans, and both are read one place earlier: a scan carries what it was without its last element as well.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.launch import next_power_of_2

TILE = 4_096
NEVER = tl.constexpr(2**30)  # a budget that is not reached


def records(x: Float[Tensor, "b h n"], budget: Int[Tensor, "_b n"], among: int) -> Bool[Tensor, "b h n"]:
    (b, h, n), chosen = x.shape, torch.empty(x.shape, dtype=torch.bool, device=x.device)
    apart = 0 if len(budget) == 1 else n
    _records[(b * h,)](x, budget, chosen.view(torch.uint8), h, n, apart, **launch(n, among))
    return chosen


def launch(n: int, among: int) -> dict[str, int]:
    T = min(TILE, next_power_of_2(n))
    return {"LEVELS": among, "L": next_power_of_2(among), "T": T, "num_warps": max(1, T // 256)}


@triton.jit
@no_type_check
def _records(x, budget, chosen, heads, n, apart, LEVELS: tl.constexpr, L: tl.constexpr, T: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    level = tl.arange(0, L)
    kept, number = tl.full([L], float("-inf"), tl.float32), tl.full([], 0, tl.int32)
    nothing, never = tl.full([T], float("-inf"), tl.float32), tl.full([T], NEVER, tl.int32)
    for start in range(0, n, T):
        at = start + tl.arange(0, T)
        there = at < n
        numbers = tl.load(x + pair * n + at, mask=there, other=float("-inf"))
        passed_on = numbers
        for i in tl.static_range(LEVELS):
            mine = tl.max(tl.where(level == i, kept, float("-inf")), axis=0)
            largest = tl.maximum(tl.max(passed_on, axis=0), mine)
            _, earlier = tl.associative_scan((passed_on, nothing), 0, _larger)
            passed_on = tl.minimum(passed_on, tl.maximum(earlier, mine))
            kept = tl.where(level == i, largest, kept)
        record = (numbers > passed_on).to(tl.int32)
        allowed = tl.load(budget + pair // heads * apart + at, mask=there, other=NEVER)
        add, most, add_before, most_before = tl.associative_scan((record, allowed, record * 0, never), 0, _counted)
        now = tl.minimum(number + add, most)
        tl.store(chosen + pair * n + at, (now > tl.minimum(number + add_before, most_before)).to(tl.uint8), mask=there)
        number = tl.max(now, axis=0)


@triton.jit
@no_type_check
def _larger(a, a_before, b, b_before):
    """The largest of two stretches, and the largest without the last element of the second."""
    return tl.maximum(a, b), tl.maximum(a, b_before)


@triton.jit
@no_type_check
def _counted(add, most, add_before, most_before, more, limit, more_before, limit_before):
    """min(. + add, most), then min(. + more, limit); and the same without the last element of the second."""
    return (
        add + more,
        tl.minimum(most + more, limit),
        add + more_before,
        tl.minimum(most + more_before, limit_before),
    )
