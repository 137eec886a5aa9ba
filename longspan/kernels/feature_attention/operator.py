"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `feature_attention` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.feature_attention.shapes import Shape
from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::feature_attention", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    feature: str,
    causal: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y; and for the way back its denominators [b h n] and the sums that parts begin with, of all slices in a row."""
    from longspan.kernels.feature_attention import triton

    slices = Shape.slices(q, v, feature, causal, eps, floor)
    q, k, v = map(readable, (q, k, v))
    beside = triton.Beside(*_beside(key_mask, query_angles, key_angles))
    y, d = empty_like(q, v.shape[3], v.dtype), q.new_empty(q.shape[:3], dtype=torch.float32)
    partial = empty_like(q, v.shape[3], torch.float32) if len(slices) > 1 else y
    kept = []
    with torch.cuda.device_of(q):  # Triton launches on the current device
        for one in slices:
            own_q, own_k = one.cut(q, k)
            sums = triton.sum_keys(one, own_k, v, beside)
            triton.read(one, own_q, own_k, v, beside, sums, y, d, partial)
            kept.append(sums.flatten())
    return y, d, kept[0] if len(kept) == 1 else torch.cat(kept)


@forward.register_fake
def _(q, k, v, key_mask, query_angles, key_angles, feature, causal, eps, floor):
    kept = sum(math.prod(one.kept(k.shape[2])) for one in Shape.slices(q, v, feature, causal, eps, floor))
    d = q.new_empty(q.shape[:3], dtype=torch.float32)
    return empty_like(q, v.shape[3], v.dtype), d, q.new_empty(kept, dtype=torch.float32)


@torch.library.custom_op("longspan::feature_attention_backward", mutates_args=())
def backward(
    dy: Tensor,
    y: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    d: Tensor,
    kept: Tensor,
    feature: str,
    causal: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; several slices need y, of which each knows only a part."""
    from longspan.kernels.feature_attention import triton

    slices = Shape.slices(q, v, feature, causal, eps, floor)
    dy, q, k, v = map(readable, (dy, q, k, v))
    beside = triton.Beside(*_beside(key_mask, query_angles, key_angles))
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    d, kept, dd, partial = d.contiguous(), kept.contiguous(), torch.empty_like(d), dv
    if y is not None:
        through = (dy.float() * y.float()).sum(dim=-1)
        dd = torch.where(d > floor, -through / d, 0)
        partial = empty_like(v, v.shape[3], torch.float32)
    with torch.cuda.device_of(q):
        for one in slices:
            own_q, own_k, own_dq, own_dk = one.cut(q, k, dq, dk)
            rows, *matrix = one.kept(k.shape[2])
            sums, kept = kept.split([size := rows * math.prod(matrix), kept.numel() - size])
            sums = sums.view(-1, *q.shape[:2], *matrix)
            dsums = triton.back_to_queries(one, dy, dd, y is not None, own_q, own_k, v, beside, sums, d, own_dq)
            triton.back_to_keys(one, dy, dd, own_q, own_k, v, beside, dsums, d, own_dk, dv, partial)
    return dq, dk, dv


@backward.register_fake
def _(dy, y, q, k, v, *rest):
    return tuple(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))


def _beside(key_mask: Tensor | None, *angles: Tensor | None) -> list[Tensor | None]:
    return [*(None if x is None else x.float().contiguous() for x in angles), as_bytes(key_mask)]


def _remember(ctx, inputs, output) -> None:
    *tensors, feature, causal, eps, floor = inputs
    y, d, kept = output
    sliced = len(Shape.slices(tensors[0], tensors[2], feature, causal, eps, floor)) > 1
    ctx.save_for_backward(*tensors, y if sliced else None, d, kept)
    ctx.rest = feature, causal, eps, floor
    ctx.set_materialize_grads(False)  # nobody differentiates denominators and sums


def _gradients(ctx, dy, *nothing):
    *inputs, y, d, kept = ctx.saved_tensors
    return (*backward(dy, y, *inputs, d, kept, *ctx.rest), *[None] * 7)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.feature_attention)
def _feature_attention(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The same for [b h n c], whatever is done pair by pair within a tile; a cosine doubles the width of features."""
    feature = next(word for word in rest if isinstance(word, str))
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * q[3] * (2 if feature == "cosine" else 1) * (v[3] + 1)


@counts(torch.ops.longspan.feature_attention_backward)
def _feature_attention_back(dy: Any, dd: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _feature_attention(*rest)
