"""Attention by positive random features as a torch operator."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.kernels.favor.shape import Shape
from longspan.kernels.launch import as_bytes, empty_like, readable
from longspan.kernels.operator import differentiate, like, operator


def _outputs(q: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for y, its denominators and the maxima."""
    maxima = q.new_empty(3 if causal else 1, *q.shape[:3], dtype=torch.float32)
    return empty_like(q, v.shape[3], v.dtype), torch.empty_like(maxima[0]), maxima


def _fake(q, k, v, projection, key_mask, causal):
    shape = Shape.of(q, v, projection, causal)
    saved = []
    for places in shape.saved(k.shape[2]):
        saved.append(v.new_empty(places, *k.shape[:2], shape.R, shape.E))
        saved.append(v.new_empty(places, *k.shape[:2], 2, shape.R, dtype=torch.float32))
    return *_outputs(q, v, causal), *saved


def _flops(q, k, v, W, sums: int) -> int:
    """Features are one product of every token with W, however often they are recomputed; sums and readings follow."""
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * W[0] * (W[1] + sums * (v[3] + 1))


@operator("favor", fake=_fake, flops=lambda q, k, v, W, *rest: _flops(q, k, v, W, 1))
def forward(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, key_mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y; and for the backward pass its denominators, maxima [1 or 3, b h n], and the four tensors of M."""
    from longspan.kernels.favor import triton

    shape, inputs = _launch(q, k, v, projection, key_mask, causal)
    y, d, maxima = _outputs(inputs.q, v, causal)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        (sums, edges), (states, state_edges) = triton.forward(shape, inputs, y, d, maxima)
    return y, d, maxima, sums, edges, states, state_edges


@operator(
    "favor_backward",
    fake=lambda dy, y, d, maxima, sums, edges, states, state_edges, q, k, v, *rest: like(q, k, v),
    flops=lambda dy, y, d, maxima, sums, edges, states, state_edges, q, k, v, W, *rest: _flops(q, k, v, W, 2),
)
def backward(
    dy: Tensor,
    y: Tensor,
    d: Tensor,
    maxima: Tensor,
    sums: Tensor,
    edges: Tensor,
    states: Tensor,
    state_edges: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    key_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from longspan.kernels.favor import triton

    shape, inputs = _launch(q, k, v, projection, key_mask, causal)
    M = triton.Saved(triton.Sums(sums, edges), triton.Sums(states, state_edges))
    with torch.cuda.device_of(q):
        return triton.backward(shape, readable(dy), y, inputs, M, d, maxima)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, key_mask: Tensor | None, causal: bool
) -> tuple[Shape, Any]:
    from longspan.kernels.favor.triton import Inputs

    shape = Shape.of(q, v, projection, causal)
    return shape, Inputs(readable(q), readable(k), readable(v), _halves(shape, projection, q), as_bytes(key_mask))


def _halves(shape: Shape, projection: Tensor, x: Tensor) -> Tensor:
    """W in base 2 with the scale of x folded in, rounded to the type of x, and the remainder [2 r c]; padded with 0."""
    exact = projection.float() * (math.log2(math.e) / shape.c**0.25)
    exact = F.pad(exact, (0, shape.C - shape.c, 0, shape.R - shape.r))
    rounded = exact.to(x.dtype)
    return torch.stack([rounded, (exact - rounded.float()).to(x.dtype)])


differentiate(forward, backward)
