"""Linear attention as a torch operator."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.launch import as_bytes, empty_like, readable
from longspan.kernels.linear_attention.shape import Shape
from longspan.kernels.operator import differentiate, like, operator


def _shapes(
    q: Tensor, v: Tensor, cu_seqlens: Tensor | None, feature: str, causal: bool, eps: float, floor: float, signed: bool
) -> list[Shape]:
    rows = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Shape.slices(q, v, rows, feature, causal, eps, floor, signed)


def _launch(q, k, v, key_mask, q_angles, k_angles, q_cu_seqlens, k_cu_seqlens, max_n, max_m, *how) -> tuple[Any, Any]:
    """Shapes and inputs as the kernels take them; the rows of a padded batch are all of one length."""
    from longspan.kernels.linear_attention.triton import Inputs, Side

    lengths = (q.shape[2], k.shape[2]) if k_cu_seqlens is None else (max_n, max_m)
    angles = (None if x is None else x.float().contiguous() for x in (q_angles, k_angles))
    cu_seqlens = (None if x is None else x.contiguous() for x in (q_cu_seqlens, k_cu_seqlens))
    queries, keys = map(Side, lengths, angles, (None, as_bytes(key_mask)), cu_seqlens)
    return _shapes(q, v, k_cu_seqlens, *how), Inputs(readable(q), readable(k), readable(v), queries, keys)


def _fake(q, k, v, key_mask, q_angles, k_angles, q_cu_seqlens, k_cu_seqlens, max_n, max_m, *how):
    m = k.shape[2] if k_cu_seqlens is None else max_m
    saved = sum(math.prod(shape.saved(m)) for shape in _shapes(q, v, k_cu_seqlens, *how))
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
    signed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y; and for the backward pass its denominators [b h n] and the sums that parts start from, of all slices."""
    from longspan.kernels.linear_attention import triton

    shapes, inputs = _launch(
        q, k, v, key_mask, query_angles, key_angles, query_cu_seqlens, key_cu_seqlens, max_query_seqlen,
        max_key_seqlen, feature, causal, eps, floor, signed,
    )  # fmt: skip
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.forward(shapes, inputs)


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
    signed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from longspan.kernels.linear_attention import triton

    shapes, inputs = _launch(
        q, k, v, key_mask, query_angles, key_angles, query_cu_seqlens, key_cu_seqlens, max_query_seqlen,
        max_key_seqlen, feature, causal, eps, floor, signed,
    )  # fmt: skip
    with torch.cuda.device_of(q):
        return triton.backward(shapes, readable(dy), y, d.contiguous(), sums.contiguous(), inputs)


def _saved(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[int, ...]:
    """Denominators and sums, and y where features come in slices."""
    return (0, 1, 2) if len(_shapes(q, v, rest[4], *rest[-5:])) > 1 else (1, 2)


def _gradients(dy: Tensor, *saved_and_inputs: Any) -> tuple[Tensor, ...]:
    *outputs, sums = saved_and_inputs[:-INPUTS]
    y, d = outputs if len(outputs) == 2 else (None, *outputs)
    return backward(dy, y, d, sums, *saved_and_inputs[-INPUTS:])


INPUTS = 15  # of `forward`
differentiate(forward, _gradients, saved=_saved)
