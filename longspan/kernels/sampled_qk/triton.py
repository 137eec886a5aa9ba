"""Sampled scores in Triton: a program has one query of one head and all of its sampled keys at once.

Programs run query by query, head by head, so that the keys of a head stay in the cache while its queries draw from
them; only two numbers a query are written.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

WARP = 4_096  # elements of a sample per warp


def launch(samples: int, c: int) -> dict:
    """Sizes, the powers of two they are padded to, and the warps of a program."""
    widths = {"S": triton.next_power_of_2(samples), "C": triton.next_power_of_2(c)}
    warps = min(8, max(1, widths["S"] * widths["C"] // WARP))
    return {"samples": samples, "c": c, **widths, "num_warps": warps}


@triton.jit
@no_type_check
def sampled_qk(
    q, k, sample, size, largest, gap, n, heads, sample_row, size_row, q_row, q_head, q_token, k_row, k_head, k_token,
    samples: tl.constexpr, c: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    i, pair = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, head = pair // heads, pair % heads
    at, channel = tl.arange(0, S), tl.arange(0, C)
    inside = at < samples
    drawn = inside & (at < tl.load(size + row * size_row + i))
    place = tl.load(sample + (row * sample_row + i) * samples + at, mask=inside, other=0).to(tl.int64)
    query = tl.load(q + row * q_row + head * q_head + i * q_token + channel, mask=channel < c, other=0.0)  # [C]
    keys = tl.load(
        k + row * k_row + head * k_head + place[:, None] * k_token + channel[None, :],
        mask=drawn[:, None] & (channel < c)[None, :],
        other=0.0,
    )  # [S, C]
    scores = tl.sum(keys.to(tl.float32) * query.to(tl.float32)[None, :], axis=1)
    most = tl.max(tl.where(drawn, scores, float("-inf")), axis=0)
    tl.store(largest + pair * n + i, most)
    tl.store(gap + pair * n + i, tl.sum(tl.where(drawn, most - scores, 0.0), axis=0))
