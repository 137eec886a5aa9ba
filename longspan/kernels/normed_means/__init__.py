"""Normed means: every token projected and normalised, and the mean of that over each segment of a row.

    m_r = mean over the tokens i of segment r of norm(W x_i + b)      norm(z) = (z - mean(z)) / sqrt(var(z) + eps)

with mean and variance over the channels: the mean of a layer norm whose gain and shift are left to the caller, since
they are the same for all tokens. Segments are those of `segment_means` with the longer ones last; the mean of one
without tokens is 0. All is computed in float32 or better, and so is the result. `reference` defines the answer;
`triton` takes tokens in float32 with up to 64 channels or in bfloat16 with up to 128, reads every token once, keeps
nothing for the way back, and gives the same bits in every run.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.few_queries.shapes import unsupported_reason
from longspan.kernels.normed_means import operator, reference
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.segment_means import borders


def normed_means(
    x: Float[Tensor, "b h n c"],
    weight: Float[Tensor, "c c"],
    bias: Float[Tensor, " c"],
    segments: int,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    eps: float = 1e-5,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"]]:
    """The means, and which segments hold a token at all."""
    impl = choose(impl, "normed_means", x, _unsupported_reason(x))
    with without_autocast(x):
        if impl == "reference":
            return reference.normed_means(at_least_single(x), weight, bias, segments, mask, eps)
        begins, occupied = None, torch.arange(segments, device=x.device).lt(x.shape[2]).expand(x.shape[0], -1)
        if mask is not None:
            begins, occupied = borders(mask, segments)
        return operator.forward(x, weight.float(), bias.float(), mask, begins, segments, eps), occupied


def _unsupported_reason(x: Float[Tensor, "b h n c"]) -> str:
    """What keeps the kernel from these tokens, if anything."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes float32 or bfloat16, got {x.dtype}"
    return unsupported_reason(x, 1)
