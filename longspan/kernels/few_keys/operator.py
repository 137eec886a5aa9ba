"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `few_keys` say them.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import as_bytes, empty_like, readable


@torch.library.custom_op("longspan::few_keys", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shift: Tensor | None,
    center: Tensor | None,
    base: Tensor | None,
    query_mask: Tensor | None,
    beta: float,
) -> Tensor:
    from longspan.kernels.few_keys import triton

    y, beside = empty_like(q, v.shape[3], q.dtype), _without_gaps(shift, center, base)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.read(readable(q), k.contiguous(), v.contiguous(), as_bytes(query_mask), beta, y, *beside)
    return y


@forward.register_fake
def _(q, k, v, shift, center, base, query_mask, beta):
    return empty_like(q, v.shape[3], q.dtype)


@torch.library.custom_op("longspan::few_keys_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shift: Tensor | None,
    center: Tensor | None,
    base: Tensor | None,
    query_mask: Tensor | None,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, the gradients of k, v and center side by side, and those of shift and base one above the other."""
    from longspan.kernels.few_keys import triton

    dq, beside = empty_like(q, q.shape[3], q.dtype), _without_gaps(shift, center, base)
    given = (readable(dy), readable(q), k.contiguous(), v.contiguous())
    with torch.cuda.device_of(q):
        return dq, *triton.back(*given, as_bytes(query_mask), beta, dq, *beside)


@backward.register_fake
def _(dy, q, k, v, shift, center, base, query_mask, beta):
    b, h, r, _ = k.shape
    few = k.new_empty(b, h, r, sum(_widths(k, v, center)))
    return empty_like(q, q.shape[3], q.dtype), few, k.new_empty(b, h, 1 if center is None else 2, r)


def _widths(k: Tensor, v: Tensor, center: Tensor | None) -> list[int]:
    return [k.shape[3], v.shape[3], *([] if center is None else [k.shape[3]])]


def _without_gaps(*few: Tensor | None) -> list[Tensor | None]:
    return [None if x is None else x.contiguous() for x in few]


def _remember(ctx, inputs, output) -> None:
    *tensors, ctx.beta = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx, dy):
    q, k, v, shift, center, *rest = ctx.saved_tensors
    dq, few, starts = backward(dy, q, k, v, shift, center, *rest, ctx.beta)
    dk, dv, *dcenter = few.split(_widths(k, v, center), dim=3)
    dshift, *dbase = starts.unbind(dim=2)
    factor = (*dcenter, *dbase) or (None, None)
    return dq, dk, dv, None if shift is None else dshift, *factor, None, None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.few_keys)
def _few_keys(
    q: Any, k: Any, v: Any, shift: Any, center: Any, *rest: Any, out_shape: Any = None, **options: Any
) -> int:
    """The same from the other side; a second factor is one product more, and three on the way back."""
    return 2 * math.prod(q[:3]) * k[2] * ((1 if center is None else 2) * q[3] + v[3])


@counts(torch.ops.longspan.few_keys_backward)
def _few_keys_back(dy: Any, q: Any, k: Any, v: Any, shift: Any, center: Any, *rest: Any, **options: Any) -> int:
    return 2 * math.prod(q[:3]) * k[2] * ((3 if center is None else 6) * q[3] + 2 * v[3])
