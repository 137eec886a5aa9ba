"""Powers of a matrix by doubling, as an operator of torch with its gradient: A^t b and c A^t for all t < T, and A^T.

    P_0 = A      P_{j+1} = P_j P_j      c A^(h+t) = c A^t P_j for t < h = 2^j      A^(h+t) b = P_j A^t b

Products have the precision of float32, whatever torch is told about its own: an error of P_j doubles with each square.
Rows are b^T and all c; those of b are multiplied by transposes. `reference.powers` is the law. Signatures of operators
are read by torch, which knows tensors but no shapes; those of `powers` say them.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.flops import counts


def powers(
    a: Float[Tensor, "d k k"], rows: Float[Tensor, "d f k"], length: int
) -> tuple[Float[Tensor, "d f t k"], Float[Tensor, "d k k"]]:
    """The first row times all powers of A^T and the others times all of A, up to `length`, a power of two; and A^T."""
    found, last, _ = forward(a.float(), rows.float(), length.bit_length() - 1)
    return found, last


@torch.library.custom_op("longspan::matrix_powers", mutates_args=())
def forward(a: Tensor, rows: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows [d f t k], A^T [d k k], and for the way back all P_j, of which it is the last [d levels+1 k k]."""
    from longspan.kernels.state_space import triton

    (d, families, k), length = rows.shape, 1 << levels
    found, squares = rows.new_empty(d, families, length, k), a.new_empty(d, levels + 1, k, k)
    found[:, :, 0], squares[:, 0] = rows, a
    with torch.cuda.device_of(a):  # Triton launches on the current device
        for level in range(levels):
            triton.double(found, squares, level)
    return found, squares[:, -1].clone(), squares


@forward.register_fake
def _(a, rows, levels):
    d, families, k = rows.shape
    found, squares = rows.new_empty(d, families, 1 << levels, k), a.new_empty(d, levels + 1, k, k)
    return found, a.new_empty(d, k, k), squares


@torch.library.custom_op("longspan::matrix_powers_backward", mutates_args=())
def backward(dfound: Tensor, dlast: Tensor, found: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of A and of the rows."""
    from longspan.kernels.state_space import triton

    dfound, dsquares = dfound.clone(memory_format=torch.contiguous_format), torch.empty_like(squares)
    dsquares[:, -1] = dlast
    with torch.cuda.device_of(found):
        for level in reversed(range(squares.shape[1] - 1)):
            triton.halve(dfound, dsquares, found, squares, level)
    return dsquares[:, 0].clone(), dfound[:, :, 0].clone()


@backward.register_fake
def _(dfound, dlast, found, squares):
    d, families, _, k = found.shape
    return found.new_empty(d, k, k), found.new_empty(d, families, k)


def _remember(ctx, inputs, output) -> None:
    found, _, squares = output
    ctx.save_for_backward(found, squares)
    ctx.set_materialize_grads(False)  # nobody differentiates the squares


def _gradients(ctx, dfound, dlast, _):
    found, squares = ctx.saved_tensors
    dfound = torch.zeros_like(found) if dfound is None else dfound
    dlast = torch.zeros_like(squares[:, -1]) if dlast is None else dlast
    return *backward(dfound, dlast, found, squares), None


forward.register_autograd(_gradients, setup_context=_remember)


@counts(torch.ops.longspan.matrix_powers)
def _matrix_powers(a: Any, rows: Any, levels: int, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(a) * (levels * a[2] + rows[1] * (2**levels - 1))


@counts(torch.ops.longspan.matrix_powers_backward)
def _matrix_powers_back(dr: Any, dl: Any, rows: Any, squares: Any, **options: Any) -> int:
    d, families, _, k = rows
    return 2 * _matrix_powers((d, k, k), (d, families, k), squares[1] - 1)
