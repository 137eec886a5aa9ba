"""Sampled scores: every query against a few keys drawn for it, and how far the largest score stands out; no gradient.

    x_is = q_i . k_(sample_is)      largest_i = max_s x_is      gap_i = sum_s (largest_i - x_is)      s < size_i

All heads of a row draw the same keys, and rows may share a sample. Scores are products of the given numbers in float32
or better; where one key was drawn every time, the gap is exactly 0. Without a sample largest is -inf and the gap 0.
`reference` defines the answer and copies every sampled key; `triton` reads it in place.

`draw_keys` makes such samples: the draw s of query i is the hash (a_s i + b_s) mod p of its position, scaled to the
number of keys, so that a draw needs no storage and decoding repeats it. `log_budget` says how many to draw.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.precision import without_autocast
from longspan.kernels.sampled_qk import operator, reference

LARGEST_SAMPLE = 16_384  # elements that a program holds: the sampled keys of one query in one head
PRIME = 2**31 - 1  # p
POWERS = tuple(int(math.exp(power)) for power in range(22))  # of e, rounded down, while below the prime


@torch.no_grad()
def sampled_qk(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    sample: Int[Tensor, "#b n s"],
    size: Int[Tensor, "#b n"],
    *,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h n"], Float[Tensor, "b h n"]]:
    """The largest score of each query with its sample, and the sum of its distances from the others."""
    impl = choose(impl, "sampled_qk", q, _unsupported_reason(q, k, sample))
    with without_autocast(q):
        compute = operator.sampled_qk if impl == "triton" else reference.sampled_qk
        largest, gap = compute(q, k, sample, size)
    return largest, gap


def hash_coefficients(factor: int) -> Int[Tensor, "2 s"]:
    """a and b for as many draws as any `log_budget` of this factor."""
    return torch.randint(1, PRIME, (2, factor * len(POWERS)))


def draw_keys(
    coefficients: Int[Tensor, "2 s"], position: Int[Tensor, "#b n"], keys: Int[Tensor, "#b #n"]
) -> Int[Tensor, "_ n s"]:
    """Which of its `keys` each query draws, with replacement; the same ones whatever comes after it."""
    a, b = coefficients
    return ((position[..., None] + 1) * a + b) % PRIME * keys[..., None] // PRIME


def log_budget(factor: int, count: int) -> int:
    """factor ceil(ln count), the logarithm at least 1, and at most count.

    Found by comparing, so that a graph compiled for one length holds for others.

    >>> log_budget(5, 1000), log_budget(5, 3)
    (35, 3)
    """
    return min(factor * max(1, sum(count > power for power in POWERS)), count)


def log_budgets(factor: int, count: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """`log_budget` of many counts."""
    steps = count.clamp(min=1).double().log().ceil().long().clamp(min=1)
    return torch.minimum(factor * steps, count)


def _unsupported_reason(q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], sample: Int[Tensor, "_ n s"]) -> str:
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes q and k both in float32 or both in half precision, got {q.dtype} and {k.dtype}"
    if not all((q.numel(), k.numel(), sample.numel())):
        return f"there is nothing to multiply, got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(sample.shape)}"
    if sample.shape[2] * q.shape[3] > LARGEST_SAMPLE:
        return f"a sample may have {LARGEST_SAMPLE} numbers, got {sample.shape[2]} keys of {q.shape[3]}"
    return ""
