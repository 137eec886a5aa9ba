"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `few_queries` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::few_queries", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, half: float) -> tuple[Tensor, Tensor]:
    from longspan.kernels.few_queries import triton

    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.collect(q.contiguous(), readable(k), readable(v), as_bytes(key_mask), half)


@forward.register_fake
def _(q, k, v, key_mask, half):
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op("longspan::few_queries_backward", mutates_args=())
def backward(
    dy: Tensor,
    dlevel: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    y: Tensor,
    level: Tensor,
    half: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from longspan.kernels.few_queries import triton

    few = [x.contiguous() for x in (dy, dlevel, q, y, level)]
    dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (k, v))
    with torch.cuda.device_of(q):
        return triton.back(readable(k), readable(v), as_bytes(key_mask), half, dk, dv, *few), dk, dv


@backward.register_fake
def _(dy, dlevel, q, k, v, key_mask, y, level, half):
    dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (k, v))
    return q.new_empty(q.shape), dk, dv


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.half = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)  # softmax attention has no use for the levels


def _gradients(ctx, dy, dlevel):
    *inputs, y, level = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dlevel = torch.zeros_like(level) if dlevel is None else dlevel
    return *backward(dy, dlevel, *inputs, y, level, ctx.half), None, None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.few_queries)
def _few_queries(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Every token against all of the few, and their sum."""
    return 2 * math.prod(k[:3]) * q[2] * (k[3] + v[3])


@counts(torch.ops.longspan.few_queries_backward)
def _few_queries_back(dy: Any, dlevel: Any, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> int:
    """Scores again and those of the gradient, and a product for each of the three gradients."""
    return 2 * math.prod(k[:3]) * q[2] * (3 * k[3] + 2 * v[3])
