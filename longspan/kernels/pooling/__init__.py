"""Pooling: means of the tokens of a row, over segments of it, with softmax weights, or over all tokens so far.

    segment_means    the real tokens of each row cut into runs of nearly equal length, and the mean of each run
    normed_means     the same of norm(W x_i + b), norm(z) = (z - mean(z)) / sqrt(var(z) + eps) over the channels: a
                     layer norm whose gain and shift are left to the caller, since they are the same for all tokens
    softmax_pooling  s_r = sum_j p_jr x_j, p_r = softmax_j(a_jr), over the real tokens j; 0 without any
    running_mean     m_t = sum_{s <= t} x_s / max(1, number of real s <= t), over the real tokens s

Only real tokens count, wherever padding lies and whatever it holds. A row with fewer tokens than segments has one token
in each of its first segments and leaves the others empty; their mean is 0. Where the length does not divide, some
segments have a token more: `longer="spread"` distributes them, token p of n being in segment floor(p r / n);
`longer="last"`, which `normed_means` has, puts them at the end. Sums are in float32 or better, and so are means of
segments; a running mean has the type of x, and softmax weights are rounded to it. `reference` defines the answers. The
Triton kernels take float32 or half precision (`normed_means` float32 up to 64 channels, bfloat16 up to 128), write no
softmax weights and are deterministic.
"""

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from longspan.kernels import landmark
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.pooling import operator, reference
from longspan.kernels.pooling.reference import segment_means
from longspan.kernels.precision import at_least_single, without_autocast

HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
MOST, WIDEST = 128, 128  # softmax-weighted means of a row, and their channels
WIDEST_RUNNING = 256  # tokens of a running mean


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
    kind = x.dtype in (torch.float32, torch.bfloat16)
    reason = landmark.unsupported_reason(x, 1) if kind else f"it takes float32 or bfloat16, got {x.dtype}"
    impl = choose(impl, "normed_means", x, reason)
    with without_autocast(x):
        if impl == "reference":
            normed = reference.normed(at_least_single(x), weight, bias, mask, eps)
            return segment_means(normed, segments, mask, longer="last")
        begins, occupied = None, torch.arange(segments, device=x.device).lt(x.shape[2]).expand(x.shape[0], -1)
        if mask is not None:
            begins, occupied = borders(mask, segments)
        return operator.normed_means(x, weight.float(), bias.float(), mask, begins, segments, eps), occupied


def borders(mask: Bool[Tensor, "b n"], segments: int) -> tuple[Int32[Tensor, "b r1"], Bool[Tensor, "b r"]]:
    """Where each segment begins, the longer ones last, with n after the last; and which of them hold a token.

    All tokens of a row, hidden ones too, lie between the first border and the last.
    """
    r, length = torch.arange(segments + 1, device=mask.device), mask.sum(dim=1, keepdim=True)
    cut = length.clamp(min=segments)
    place = r * (cut // segments) + (r - segments + cut % segments).clamp(min=0)  # among the real tokens of a row
    begins = torch.searchsorted(mask.cumsum(dim=1), place + r.clamp(max=1))  # n where there are fewer
    return begins.int(), place[:, :-1] < length


def softmax_pooling(
    a: Float[Tensor, "b h n r"],
    x: Float[Tensor, "b h n c"],
    *,
    mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h r c"]:
    """The means of x with the weights softmax(a), a softmax over the tokens for each of r means."""
    reason = "" if a.numel() and x.numel() else "there are no tokens"
    if not {a.dtype, x.dtype} <= {*HALF_OR_SINGLE}:
        reason = f"it takes float32 and half precision, got {a.dtype} and {x.dtype}"
    elif a.shape[3] > MOST or x.shape[3] > WIDEST:
        reason = f"there may be {MOST} summaries of {WIDEST} channels, got {a.shape[3]} of {x.shape[3]}"
    impl = choose(impl, "softmax_pooling", x, reason)
    with without_autocast(x):
        return operator.softmax_pooling(a, x, mask)[0] if impl == "triton" else reference.softmax_pooling(a, x, mask)


def running_mean(
    x: Float[Tensor, "b h n c"], *, mask: Bool[Tensor, "b n"] | None = None, impl: Implementation = "auto"
) -> Float[Tensor, "b h n c"]:
    """At each token the mean of all real tokens up to it; 0 before the first."""
    reason = "" if x.numel() else "there are no tokens"
    if x.dtype not in HALF_OR_SINGLE:
        reason = f"it takes float32 or half precision, got {x.dtype}"
    elif x.shape[3] > WIDEST_RUNNING:
        reason = f"tokens must be at most {WIDEST_RUNNING} wide, got {x.shape[3]}"
    impl = choose(impl, "running_mean", x, reason)
    with without_autocast(x):
        return (operator.running_mean if impl == "triton" else reference.running_mean)(x, mask)
