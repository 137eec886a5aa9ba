"""Sampled scores: every query against a few keys of its own, and how far apart these scores lie; without a gradient.

    x_is = q_i . k_(sample_is)      largest_i = max_s x_is      apart_i = sum_s (largest_i - x_is)      s < size_i

All heads of a row draw the same keys, and rows may share a sample. Scores are products of the given numbers in float32
or better; where one key was drawn every time, apart is exactly 0. Without a sample largest is -inf and apart 0.
`reference` defines the answer and copies every sampled key; `triton` reads it where it lies.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.precision import without_autocast
from longspan.kernels.sampled_qk import operator, reference

MOST = 16_384  # numbers that a program holds: the sampled keys of one query in one head


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
        largest, apart = compute(q, k, sample, size)
    return largest, apart


def _unsupported_reason(q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], sample: Int[Tensor, "_ n s"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    if q.dtype != k.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes q and k both in float32 or both in half precision, got {q.dtype} and {k.dtype}"
    if not all((q.numel(), k.numel(), sample.numel())):
        return f"there is nothing to multiply, got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(sample.shape)}"
    if sample.shape[2] * q.shape[3] > MOST:
        return f"a sample may have {MOST} numbers, got {sample.shape[2]} keys of {q.shape[3]}"
    return ""
