"""Linear attention as a torch operator."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.launch import as_bytes, empty_like, readable
from longspan.kernels.linear_attention.shape import Shape
from longspan.kernels.operator import differentiate, like, operator


def _shapes(
    q: Tensor, v: Tensor, cu_seqlens: Tensor | None, feature: str, causal: bool, eps: float, floor: float
) -> list[Shape]:
    rows = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Shape.slices(q, v, rows, feature, causal, eps, floor)


def _inputs(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *beside: Any) -> Any:
    """As the kernels take them; the rows of a padded batch are all of one length."""
    from longspan.kernels.linear_attention.triton import Inputs, Side

    angles, cu_seqlens, lengths = beside[:2], beside[2:4], beside[4:]
    lengths = (q.shape[2], k.shape[2]) if cu_seqlens[0] is None else lengths
    angles = (None if x is None else x.float().contiguous() for x in angles)
    cu_seqlens = (None if x is None else x.contiguous() for x in cu_seqlens)
    queries, keys = map(Side, lengths, angles, (None, as_bytes(key_mask)), cu_seqlens)
    return Inputs(readable(q), readable(k), readable(v), queries, keys)


def _fake(
    q, k, v, key_mask, q_angles, k_angles, q_cu_seqlens, k_cu_seqlens, max_n, max_m, feature, causal, eps, floor
):  # fmt: skip
    m = k.shape[2] if k_cu_seqlens is None else max_m
    shapes = _shapes(q, v, k_cu_seqlens, feature, causal, eps, floor)
    saved = sum(math.prod(shape.saved(m)) for shape in shapes)
    d, sums = q.new_empty(q.shape[:3], dtype=torch.float32), q.new_empty(saved, dtype=torch.float32)
    return empty_like(q, v.shape[3], v.dtype), d, sums


def _flops(q, k, v, *rest) -> int:
    """Every key into the sums, every query times the sums, which have one column more; a cosine doubles the width."""
    feature = next(word for word in rest if isinstance(word, str))
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * q[3] * (2 if feature == "cosine" else 1) * (v[3] + 1)


@operator("linear_attention", fake=_fake, flops=_flops)
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    query_cu_seqlens: Tensor | None,
    key_cu_seqlens: Tensor | None,
    max_query_seqlen: int,
    max_key_seqlen: int,
    feature: str,
    causal: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y; and for the backward pass its denominators [b h n] and the sums that parts start from, of all slices."""
    from longspan.kernels.linear_attention import triton

    shapes = _shapes(q, v, key_cu_seqlens, feature, causal, eps, floor)
    rows = (query_cu_seqlens, key_cu_seqlens, max_query_seqlen, max_key_seqlen)
    inputs = _inputs(q, k, v, key_mask, query_angles, key_angles, *rows)
    q, k, v = inputs[:3]
    y, d = empty_like(q, v.shape[3], v.dtype), q.new_empty(q.shape[:3], dtype=torch.float32)
    partial = empty_like(q, v.shape[3], torch.float32) if len(shapes) > 1 else y
    saved = []
    with torch.cuda.device_of(q):  # Triton launches on the current device
        for shape in shapes:
            own = inputs._replace(q=shape.cut(q), k=shape.cut(k))
            sums = triton.sum_keys(shape, own)
            triton.read(shape, own, sums, y, d, partial)
            saved.append(sums.flatten())
    return y, d, saved[0] if len(saved) == 1 else torch.cat(saved)


@operator(
    "linear_attention_backward",
    fake=lambda dy, y, d, sums, q, k, v, *rest: like(q, k, v),
    flops=lambda dy, y, d, sums, *inputs: 2 * _flops(*inputs),
)
def backward(
    dy: Tensor,
    y: Tensor | None,
    d: Tensor,
    sums: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    query_angles: Tensor | None,
    key_angles: Tensor | None,
    query_cu_seqlens: Tensor | None,
    key_cu_seqlens: Tensor | None,
    max_query_seqlen: int,
    max_key_seqlen: int,
    feature: str,
    causal: bool,
    eps: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; several slices need y, since each computes only a part of it."""
    from longspan.kernels.linear_attention import triton

    shapes = _shapes(q, v, key_cu_seqlens, feature, causal, eps, floor)
    rows = (query_cu_seqlens, key_cu_seqlens, max_query_seqlen, max_key_seqlen)
    inputs = _inputs(q, k, v, key_mask, query_angles, key_angles, *rows)
    dy, (q, k, v) = readable(dy), inputs[:3]
    dq, dk, dv = like(q, k, v)
    d, sums, dd, partial = d.contiguous(), sums.contiguous(), torch.empty_like(d), dv
    if y is not None:
        delta = (dy.float() * y.float()).sum(dim=-1)
        dd = torch.where(d > floor, -delta / d, 0)
        partial = empty_like(v, v.shape[3], torch.float32)
    with torch.cuda.device_of(q):
        for shape in shapes:
            own, size = inputs._replace(q=shape.cut(q), k=shape.cut(k)), shape.saved(inputs.keys.max_seqlen)
            own_sums, sums = sums.split([math.prod(size), sums.numel() - math.prod(size)])
            own_sums = own_sums.view(size)
            dsums = triton.backward_queries(shape, dy, dd, y is not None, own, own_sums, d, shape.cut(dq))
            triton.backward_keys(shape, dy, dd, own, dsums, d, shape.cut(dk), dv, partial)
    return dq, dk, dv


def _saved(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[int, ...]:
    """Denominators and sums, and y where features come in slices."""
    return (0, 1, 2) if len(_shapes(q, v, rest[4], *rest[-4:])) > 1 else (1, 2)


def _gradients(dy: Tensor, *saved_and_inputs: Any) -> tuple[Tensor, ...]:
    *outputs, sums = saved_and_inputs[:-INPUTS]
    y, d = outputs if len(outputs) == 2 else (None, *outputs)
    return backward(dy, y, d, sums, *saved_and_inputs[-INPUTS:])


INPUTS = 14  # of `forward`
differentiate(forward, _gradients, saved=_saved)
