"""A recurrence in chunks as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Forth and back are the same few steps, and then one product has the gradients of all matrices:

    forth   z_{i+1} = M z_i + V u_i          y_i = W u_i + R z_i
    back    e_{i-1} = M^T e_i + R^T dy_i     du_i = W^T dy_i + V^T e_i
            (dW dR; dV dM) = sum_i (dy_i, e_i) (u_i, z_i)^T

Signatures of operators are read by torch, which knows tensors but no shapes; those of `chunks.Chunk` say them. `order`
says where the tokens of each row lie, `places` which of them stands where, both with -1 for none; without them nothing
is hidden.
"""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts


@torch.library.custom_op("longspan::state_space", mutates_args=())
def forward(
    x: Tensor,
    read: Tensor,
    write: Tensor,
    across: Tensor,
    order: Tensor | None,
    places: Tensor | None,
    diagonal: bool,
    gelu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [b n cd] as tokens; and for the way back the rows [d b i t+s] and y before GELU [d b i ct]."""
    from longspan.kernels.state_space import triton

    (b, n, d), (_, length, states) = x.shape, write.shape
    rows = x.new_empty(d, b, -(-n // length), length + states)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        triton.into_rows(x.contiguous(), order, rows, length)
        _remember_states(rows, write, across, diagonal, back=False)
        y = _times(rows, read.mT)
        tokens = x.new_empty(b, n, read.shape[1] // length * d)
        triton.out_of_rows(y, places, tokens, gelu)
    return tokens, rows, y


@forward.register_fake
def _(x, read, write, across, order, places, diagonal, gelu):
    (b, n, d), (_, length, states) = x.shape, write.shape
    chunks, width = -(-n // length), read.shape[1]
    tokens, rows = x.new_empty(b, n, width // length * d), x.new_empty(d, b, chunks, length + states)
    return tokens, rows, x.new_empty(d, b, chunks, width)


@torch.library.custom_op("longspan::state_space_backward", mutates_args=())
def backward(
    dtokens: Tensor,
    rows: Tensor,
    y: Tensor,
    read: Tensor,
    write: Tensor,
    across: Tensor,
    order: Tensor | None,
    places: Tensor | None,
    diagonal: bool,
    gelu: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of x and, in one matrix for each channel [d ct+s t+s], of W, R, V and M."""
    from longspan.kernels.state_space import triton

    (b, n, _), (d, length, states), width = dtokens.shape, write.shape, read.shape[1]
    back = rows.new_empty(*rows.shape[:3], width + states)
    with torch.cuda.device_of(rows):
        triton.into_rows(dtokens.contiguous(), order, back, length, y.contiguous() if gelu else None)
        _remember_states(back, read[..., length:], across, diagonal, back=True)
        du = _times(back, torch.cat([read[..., :length], write.mT], dim=1))
        dx = dtokens.new_empty(b, n, d)
        triton.out_of_rows(du, places, dx, False)
    return dx, torch.bmm(back.flatten(1, 2).mT, rows.flatten(1, 2))


@backward.register_fake
def _(dtokens, rows, y, read, write, across, order, places, diagonal, gelu):
    (b, n, _), (d, _, states) = dtokens.shape, write.shape
    return dtokens.new_empty(b, n, d), rows.new_empty(d, read.shape[1] + states, rows.shape[3])


def _remember_states(rows: Tensor, write: Tensor, across: Tensor, diagonal: bool, back: bool) -> None:
    """Into the last columns of the rows, what the state is before each chunk."""
    from longspan.kernels.state_space import triton

    tokens, states = rows.split(write.shape[1:], dim=3)
    triton.scan(_times(tokens, write), across.contiguous(), states, diagonal, back)


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    return torch.bmm(rows.flatten(1, 2), matrix).unflatten(1, rows.shape[1:3])


def _remember(ctx, inputs, output) -> None:
    _, *given, diagonal, gelu = inputs
    ctx.save_for_backward(*output[1:], *given)
    ctx.flags = diagonal, gelu
    ctx.set_materialize_grads(False)  # nobody differentiates the rows


def _gradients(ctx, dtokens, *_):
    read, write, across = ctx.saved_tensors[2:5]
    dx, d_all = backward(dtokens, *ctx.saved_tensors, *ctx.flags)
    d_read, below = d_all.split([read.shape[1], write.shape[2]], dim=1)
    d_write, d_across = below.split([write.shape[1], write.shape[2]], dim=2)
    k = across.shape[1] * (2 if ctx.flags[0] else 1)
    sides = d_across.float().unflatten(2, (-1, k)).unflatten(1, (-1, k))
    d_across = sides.diagonal(dim1=1, dim2=3).sum(dim=-1)  # one matrix for both directions
    d_across = _of_pairs(d_across) if ctx.flags[0] else d_across
    return dx, d_read, d_write.mT, d_across, None, None, None, None


def _of_pairs(matrix: Tensor) -> Tensor:
    """Of the matrix that multiplies pairs by complex numbers, the gradient by those [d k 2]."""
    blocks = matrix.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).diagonal(dim1=1, dim2=3)  # out, in: [d 2 2 k]
    return torch.stack([blocks[:, 0, 0] + blocks[:, 1, 1], blocks[:, 1, 0] - blocks[:, 0, 1]], dim=-1)


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.state_space)
def _state_space(x: Any, read: Any, write: Any, across: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Every token into the states of its chunk, tokens and states out of it, and states on, where they mix."""
    (b, n, d), (width, inner), (length, states) = x, read[1:], write[1:]
    each = length * states + width * inner + (0 if rest[2] else states * across[1])
    return 2 * d * b * -(-n // length) * each


@counts(torch.ops.longspan.state_space_backward)
def _state_space_back(
    dy: Any, rows: Any, y: Any, read: Any, write: Any, across: Any, *rest: Any, out_shape: Any = None, **options: Any
) -> int:
    """The same way back, and all gradients of its matrices in one product."""
    (width, inner), (length, states) = read[1:], write[1:]
    each = width * states + (width + states) * (length + inner) + (0 if rest[2] else states * across[1])
    return 2 * math.prod(rows[:3]) * each
