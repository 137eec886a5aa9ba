"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `attend` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.bounded_memory.shapes import Shape
from longspan.kernels.flops import counts
from longspan.kernels.launch import empty_like, readable


@torch.library.custom_op("longspan::bounded_memory", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    control_key: Tensor,
    control_value: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """y; and for the way back the slots that each part of a row begins with."""
    from longspan.kernels.bounded_memory import triton

    shape, q = Shape.of(q, v, control_key, causal), readable(q)
    given = triton.given(k, v, control_key, control_value, key_mask)
    y = empty_like(q, v.shape[3], v.dtype)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        found = triton.sum_up(shape, given)
        triton.attend(shape, q, given, found, y)
    return y, found


@forward.register_fake
def _(q, k, v, control_key, control_value, key_mask, causal):
    kept = Shape.of(q, v, control_key, causal).kept(k.shape[2])
    return empty_like(q, v.shape[3], v.dtype), q.new_empty(kept, dtype=torch.float32)


@torch.library.custom_op("longspan::bounded_memory_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    control_key: Tensor,
    control_value: Tensor | None,
    key_mask: Tensor | None,
    found: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and of both controls; without a control of values the last one is empty."""
    from longspan.kernels.bounded_memory import triton

    shape, dy, q, found = Shape.of(q, v, control_key, causal), readable(dy), readable(q), found.contiguous()
    given = triton.given(k, v, control_key, control_value, key_mask)
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    with torch.cuda.device_of(q):
        moments, dfound = triton.back_to_queries(shape, dy, q, given, found, dq)
        da, db = triton.back_to_keys(shape, dy, q, given, found, moments, dfound, dk, dv).unbind()
    (c, r), e = control_key.shape, 0 if control_value is None else v.shape[3]
    return dq, dk, dv, da[:c, :r].to(control_key.dtype, copy=True), db[:e, :r].to(control_key.dtype, copy=True)


@backward.register_fake
def _(dy, q, k, v, control_key, control_value, key_mask, found, causal):
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    e = 0 if control_value is None else v.shape[3]
    return dq, dk, dv, torch.empty_like(control_key), control_key.new_empty(e, control_key.shape[1])


def _remember(ctx, inputs, output) -> None:
    *tensors, causal = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.causal = causal
    ctx.set_materialize_grads(False)  # nobody differentiates the slots


def _gradients(ctx, dy, _):
    *inputs, found = ctx.saved_tensors
    dq, dk, dv, da, db = backward(dy, *inputs, found, ctx.causal)
    return dq, dk, dv, da, None if inputs[4] is None else db, None, None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.bounded_memory)
def _bounded_memory(q: Any, k: Any, v: Any, a: Any, b: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Logits of every key and value, both into the slots, queries against these, whatever is done within a tile."""
    logits = k[3] if b is None else k[3] + v[3]
    return 2 * math.prod(q[:2]) * a[1] * (k[2] * (logits + k[3] + v[3]) + q[2] * (q[3] + v[3]))


@counts(torch.ops.longspan.bounded_memory_backward)
def _bounded_memory_back(dy: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _bounded_memory(*rest)
