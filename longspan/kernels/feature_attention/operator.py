"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `feature_attention` say them.
"""

import torch
from torch import Tensor

from longspan.kernels.feature_attention.shapes import Shape, empty_like


@torch.library.custom_op("longspan::feature_attention", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    key_levels: Tensor | None,
    levels: Tensor | None,
    feature: str,
    causal: bool,
    normalised: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y and its denominators [b h n]; for the way back the sums that parts begin with [p b h e+1 r]."""
    from longspan.kernels.feature_attention import triton

    shape = Shape.of(q, v, feature, causal=causal, normalised=normalised, eps=eps, floor=floor)
    q, k, v = map(_readable, (q, k, v))
    beside = triton.Beside(*_beside(key_mask, query_angles, key_angles, key_levels, levels))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        sums = triton.sum_keys(shape, k, v, beside)
        y, d = triton.read(shape, q, k, v, beside, sums)
    return y, d, sums


@forward.register_fake
def _(q, k, v, key_mask, query_angles, key_angles, key_levels, levels, feature, causal, normalised, eps, floor):
    shape = Shape.of(q, v, feature, causal=causal, normalised=normalised, eps=eps, floor=floor)
    y = empty_like(q, v.shape[3], v.dtype if normalised else torch.float32)
    parts = shape.parts(k.shape[2]) if causal else 1
    sums = q.new_empty(parts, *q.shape[:2], shape.E + 1, shape.R, dtype=torch.float32)
    return y, q.new_empty(q.shape[:3], dtype=torch.float32), sums


@torch.library.custom_op("longspan::feature_attention_backward", mutates_args=())
def backward(
    dy: Tensor,
    dd: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    key_levels: Tensor | None,
    levels: Tensor | None,
    d: Tensor,
    sums: Tensor,
    feature: str,
    causal: bool,
    normalised: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; dd is that of the denominators where they are a result of their own."""
    from longspan.kernels.feature_attention import triton

    shape = Shape.of(q, v, feature, causal=causal, normalised=normalised, eps=eps, floor=floor)
    dy, q, k, v = map(_readable, (dy, q, k, v))
    beside = triton.Beside(*_beside(key_mask, query_angles, key_angles, key_levels, levels))
    d, sums, dd = d.contiguous(), sums.contiguous(), None if dd is None else dd.contiguous()
    with torch.cuda.device_of(q):
        dq, dd, dsums = triton.back_to_queries(shape, dy, dd, q, k, v, beside, sums, d)
        dk, dv = triton.back_to_keys(shape, dy, dd, q, k, v, beside, dsums, d)
    return dq, dk, dv


@backward.register_fake
def _(dy, dd, q, k, v, *rest):
    return tuple(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))


def _readable(x: Tensor) -> Tensor:
    """Any order of rows, heads and tokens will do, while the channels of a token lie side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


def _beside(key_mask: Tensor | None, *others: Tensor | None) -> list[Tensor | None]:
    query_angles, key_angles, *levels = (None if x is None else x.float().contiguous() for x in others)
    mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
    return [query_angles, key_angles, mask, *levels]


def _remember(ctx, inputs, output) -> None:
    *tensors, feature, causal, normalised, eps, floor = inputs
    _, d, sums = output
    ctx.save_for_backward(*tensors, d, sums)
    ctx.rest = feature, causal, normalised, eps, floor
    ctx.set_materialize_grads(False)  # nobody differentiates the sums


def _gradients(ctx, dy, dd, _):
    *inputs, d, sums = ctx.saved_tensors
    feature, causal, normalised, eps, floor = ctx.rest
    if dy is None:
        dy = torch.zeros_like(d)[..., None].expand(*d.shape, inputs[2].shape[3])
    if not normalised and dd is None:
        dd = torch.zeros_like(d)
    denominators = None if normalised else dd  # a quotient has been told of them already
    gradients = backward(dy, denominators, *inputs, d, sums, feature, causal, normalised, eps, floor)
    return (*gradients, *[None] * 10)


forward.register_autograd(_gradients, setup_context=_remember)
