"""Recurrences in chunks, and powers of matrices, as torch operators.

The forward and the backward pass are the same few steps, and one product has the gradients of all matrices:

    forward    z_{i+1} = M z_i + V u_i          y_i = W u_i + R z_i
    backward   e_{i-1} = M^T e_i + R^T dy_i     du_i = W^T dy_i + V^T e_i
               (dW dR; dV dM) = sum_i (dy_i, e_i) (u_i, z_i)^T

The letters are those of `systems.Chunk`. `order` says where the real tokens of each row are, `places` the position of
each among them, both with -1 for none; without them all are real.

Powers A^t b and c A^t for all t < T, and A^T, come by doubling:

    P_0 = A      P_{j+1} = P_j P_j      c A^(h+t) = c A^t P_j for t < h = 2^j      A^(h+t) b = P_j A^t b

in the precision of float32, whatever precision torch is set to: an error of P_j doubles with each square.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.operator import differentiate, operator


def _empty(x, read, write, across, order, places, diagonal, gelu):
    (b, n, d), (_, length, states), width = x.shape, write.shape, read.shape[1]
    chunks = -(-n // length)
    tokens, rows = x.new_empty(b, n, width // length * d), x.new_empty(d, b, chunks, length + states)
    return tokens, rows, x.new_empty(d, b, chunks, width)


def _flops(x, read, write, across, order, places, diagonal, gelu) -> int:
    """Every token into the states of its chunk, tokens and states out of it, and states on, where they mix."""
    (b, n, d), (width, inner), (length, states) = x, read[1:], write[1:]
    each = length * states + width * inner + (0 if diagonal else states * across[1])
    return 2 * d * b * -(-n // length) * each


@operator("state_space", fake=_empty, flops=_flops)
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
    """y [b n cd] as tokens; and for the backward pass the rows [d b i t+s] and y before GELU [d b i ct]."""
    from longspan.kernels.state_space import triton

    (b, n, d), (_, length, states) = x.shape, write.shape
    rows = x.new_empty(d, b, -(-n // length), length + states)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        triton.into_rows(x.contiguous(), order, rows, length)
        _store_states(rows, write, across, diagonal, backward=False)
        y = _times(rows, read.mT)
        tokens = x.new_empty(b, n, read.shape[1] // length * d)
        triton.out_of_rows(y, places, tokens, gelu)
    return tokens, rows, y


def _empty_gradients(dtokens, rows, y, read, write, across, order, places, diagonal, gelu):
    (b, n, _), (d, _, states) = dtokens.shape, write.shape
    return dtokens.new_empty(b, n, d), rows.new_empty(d, read.shape[1] + states, rows.shape[3])


def _backward_flops(dtokens, rows, y, read, write, across, order, places, diagonal, gelu) -> int:
    """The same steps, and all gradients of the matrices in one product."""
    (width, inner), (length, states) = read[1:], write[1:]
    each = width * states + (width + states) * (length + inner) + (0 if diagonal else states * across[1])
    return 2 * math.prod(rows[:3]) * each


@operator("state_space_backward", fake=_empty_gradients, flops=_backward_flops)
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
    drows = rows.new_empty(*rows.shape[:3], width + states)
    with torch.cuda.device_of(rows):
        triton.into_rows(dtokens.contiguous(), order, drows, length, y.contiguous() if gelu else None)
        _store_states(drows, read[..., length:], across, diagonal, backward=True)
        du = _times(drows, torch.cat([read[..., :length], write.mT], dim=1))
        dx = dtokens.new_empty(b, n, d)
        triton.out_of_rows(du, places, dx, False)
    return dx, torch.bmm(drows.flatten(1, 2).mT, rows.flatten(1, 2))


def _store_states(rows: Tensor, write: Tensor, across: Tensor, diagonal: bool, backward: bool) -> None:
    """The state before each chunk, into the last columns of its row."""
    from longspan.kernels.state_space import triton

    tokens, states = rows.split(write.shape[1:], dim=3)
    triton.scan(_times(tokens, write), across.contiguous(), states, diagonal, backward)


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    return torch.bmm(rows.flatten(1, 2), matrix).unflatten(1, rows.shape[1:3])


def _gradients(dtokens, rows, y, x, read, write, across, order, places, diagonal, gelu):
    dx, d_all = backward(dtokens, rows, y, read, write, across, order, places, diagonal, gelu)
    d_read, below = d_all.split([read.shape[1], write.shape[2]], dim=1)
    d_write, d_across = below.split([write.shape[1], write.shape[2]], dim=2)
    k = across.shape[1] * (2 if diagonal else 1)
    sides = d_across.float().unflatten(2, (-1, k)).unflatten(1, (-1, k))
    d_across = sides.diagonal(dim1=1, dim2=3).sum(dim=-1)  # one matrix for both directions
    if diagonal:  # from the matrix that multiplies pairs by complex numbers to those [d k 2]
        blocks = d_across.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).diagonal(dim1=1, dim2=3)  # out, in: [d 2 2 k]
        d_across = torch.stack([blocks[:, 0, 0] + blocks[:, 1, 1], blocks[:, 1, 0] - blocks[:, 0, 1]], dim=-1)
    return dx, d_read, d_write.mT, d_across


differentiate(forward, _gradients, saved=(1, 2), unneeded=(0,))


def matrix_powers(
    a: Float[Tensor, "d k k"], rows: Float[Tensor, "d f k"], length: int
) -> tuple[Float[Tensor, "d f t k"], Float[Tensor, "d k k"]]:
    """The first row times all powers of A^T and the others times all of A, up to `length`, a power of two; and A^T."""
    found, last, _ = powers_forward(a.float(), rows.float(), length.bit_length() - 1)
    return found, last


def _empty_powers(a, rows, levels):
    (d, families, k), squares = rows.shape, a.new_empty(a.shape[0], levels + 1, *a.shape[1:])
    return rows.new_empty(d, families, 1 << levels, k), a.new_empty(a.shape), squares


def _powers_flops(a, rows, levels) -> int:
    return 2 * math.prod(a) * (levels * a[2] + rows[1] * (2**levels - 1))


@operator("matrix_powers", fake=_empty_powers, flops=_powers_flops)
def powers_forward(a: Tensor, rows: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows [d f t k], A^T [d k k], and for the backward pass all P_j, of which it is the last [d levels+1 k k]."""
    from longspan.kernels.state_space import triton

    found, _, squares = _empty_powers(a, rows, levels)
    found[:, :, 0], squares[:, 0] = rows, a
    with torch.cuda.device_of(a):
        for level in range(levels):
            triton.double(found, squares, level)
    return found, squares[:, -1].clone(), squares


@operator(
    "matrix_powers_backward",
    fake=lambda dfound, dlast, found, squares: (squares.new_empty(dlast.shape), found.new_empty(found[:, :, 0].shape)),
    flops=lambda dfound, dlast, found, squares: (
        2 * _powers_flops((found[0], found[3], found[3]), found[:2], squares[1] - 1)
    ),
)
def powers_backward(dfound: Tensor, dlast: Tensor, found: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of A and of the rows."""
    from longspan.kernels.state_space import triton

    dfound, dsquares = dfound.clone(memory_format=torch.contiguous_format), torch.empty_like(squares)
    dsquares[:, -1] = dlast
    with torch.cuda.device_of(found):
        for level in reversed(range(squares.shape[1] - 1)):
            triton.halve(dfound, dsquares, found, squares, level)
    return dsquares[:, 0].clone(), dfound[:, :, 0].clone()


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    found, _, squares = output
    ctx.save_for_backward(found, squares)
    ctx.set_materialize_grads(False)  # the squares have no gradient


def _powers_gradients(ctx: Any, dfound: Tensor | None, dlast: Tensor | None, _: Any):
    found, squares = ctx.saved_tensors
    dfound = torch.zeros_like(found) if dfound is None else dfound
    dlast = torch.zeros_like(squares[:, -1]) if dlast is None else dlast
    return *powers_backward(dfound, dlast, found, squares), None


powers_forward.register_autograd(_powers_gradients, setup_context=_save)
