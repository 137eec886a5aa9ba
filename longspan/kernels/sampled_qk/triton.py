"""Sampled scores in Triton: a program has one query of one head and all of its sampled keys at once.

Programs run query by query, head by head, so that the keys of a head stay in the cache while its queries draw from
them; only two numbers a query are written.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.launch import readable

WARP = 4_096  # numbers of a sample per warp


def sampled_qk(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], sample: Int[Tensor, "#b n s"], size: Int[Tensor, "#b n"]
) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    b, h, n, c = q.shape
    q, k = readable(q), readable(k)
    largest, gap = (torch.empty(b, h, n, dtype=torch.float32, device=q.device) for _ in range(2))
    shape = launch(sample.shape[2], c)
    _sampled_qk[(n, b * h)](
        *(q, k, sample.int().contiguous(), size.int().contiguous(), largest, gap),
        *(n, h, *(0 if len(x) == 1 else n for x in (sample, size)), *q.stride()[:3], *k.stride()[:3]),
        **shape,
    )
    return largest, gap


def launch(samples: int, c: int) -> dict:
    """Sizes, the powers of two they are padded to, and the warps of a program."""
    widths = {"S": triton.next_power_of_2(samples), "C": triton.next_power_of_2(c)}
    warps = min(8, max(1, widths["S"] * widths["C"] // WARP))
    return {"samples": samples, "c": c, **widths, "num_warps": warps}


@triton.jit
@no_type_check
def _sampled_qk(
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
