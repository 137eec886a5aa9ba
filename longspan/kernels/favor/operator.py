"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `favor` say them.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.kernels.favor.shapes import Shape
from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::favor", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor, key_mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y; and for the way back its denominators, levels [1 or 3, b h n], and the four tensors of M."""
    from longspan.kernels.favor import triton

    shape, (q, k, v) = Shape.of(q, v, projection, causal), map(readable, (q, k, v))
    W, mask = _halves(shape, projection, q), as_bytes(key_mask)
    y, d, levels = _outcome(q, v, causal)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        M, peaks = triton.sum_keys(shape, k, v, W, mask)
        triton.read(shape, q, k, v, W, mask, peaks, M, y, d, _levels(levels))
    (sums, edges), (states, state_edges) = M
    return y, d, levels, sums, edges, states, state_edges


@forward.register_fake
def _(q, k, v, projection, key_mask, causal):
    shape = Shape.of(q, v, projection, causal)
    kept = []
    for places in (shape.kept(k.shape[2]), shape.states(k.shape[2])):
        kept.append(v.new_empty(places, *k.shape[:2], shape.R, shape.E))
        kept.append(v.new_empty(places, *k.shape[:2], 2, shape.R, dtype=torch.float32))
    return *_outcome(q, v, causal), *kept


@torch.library.custom_op("longspan::favor_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    key_mask: Tensor | None,
    y: Tensor,
    d: Tensor,
    levels: Tensor,
    sums: Tensor,
    edges: Tensor,
    states: Tensor,
    state_edges: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from longspan.kernels.favor import triton

    shape, (dy, q, k, v) = Shape.of(q, v, projection, causal), map(readable, (dy, q, k, v))
    W, mask, found = _halves(shape, projection, q), as_bytes(key_mask), _levels(levels)
    M = triton.Kept(triton.Sums(sums, edges), triton.Sums(states, state_edges))
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    with torch.cuda.device_of(q):
        shift, through = triton.back_to_queries(shape, dy, y, q, k, v, W, mask, M, d, found, dq)
        N = triton.sum_queries(shape, q, dy, W, shift, through)
        triton.back_to_keys(shape, dy, q, k, v, W, mask, N, found, shift, through, dk, dv)
    return dq, dk, dv


@backward.register_fake
def _(dy, q, k, v, *rest):
    return tuple(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))


def _outcome(q: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for y, its denominators and the levels."""
    levels = q.new_empty(3 if causal else 1, *q.shape[:3], dtype=torch.float32)
    return empty_like(q, v.shape[3], v.dtype), torch.empty_like(levels[0]), levels


def _levels(levels: Tensor):
    from longspan.kernels.favor import triton

    return triton.Levels(*levels, *[None] * (3 - len(levels)))


def _halves(shape: Shape, projection: Tensor, x: Tensor) -> Tensor:
    """W to base 2 with the scale of x in it, rounded to the type of x, and the rest [2 r c]; both filled up with 0."""
    exact = projection.float() * (math.log2(math.e) / shape.c**0.25)
    exact = F.pad(exact, (0, shape.C - shape.c, 0, shape.R - shape.r))
    rounded = exact.to(x.dtype)
    return torch.stack([rounded, (exact - rounded.float()).to(x.dtype)])


def _remember(ctx, inputs, output) -> None:
    *tensors, causal = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.causal = causal
    ctx.set_materialize_grads(False)  # nobody differentiates denominators, levels and sums


def _gradients(ctx, dy, *nothing):
    return *backward(dy, *ctx.saved_tensors, ctx.causal), None, None, None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.favor)
def _favor(q: Any, k: Any, v: Any, W: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Features are one product of every token with W, however often they are made again; then the same sums of them."""
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * W[0] * (W[1] + v[3] + 1)


@counts(torch.ops.longspan.favor_backward)
def _favor_back(dy: Any, q: Any, k: Any, v: Any, W: Any, *rest: Any, **options: Any) -> int:
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * W[0] * (W[1] + 2 * (v[3] + 1))
