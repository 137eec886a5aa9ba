"""The pseudo-inverse in Triton: a program owns one matrix and does all steps, and writes only the Z of each.

    forward   N = -A Z      S = 7 N + N N      F = 15 N + N S      Z' = (13 Z + Z F) / 4
    backward  dF = Z^T dZ' / 4      dS = N^T dF      dN = 15 dF + dF S^T + 7 dS + dS N^T + N^T dS
              dA -= dN Z^T          dZ = (13 dZ' + dZ' F^T) / 4 - A^T dN

Backward recomputes N, S and F from Z. Products run in tensor cores as three terms ("tf32x3"): as exact as float32, and
not much slower.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

from longspan.kernels.tiles import load_matrix, store_matrix


@triton.jit
@no_type_check
def forward(a, start, z, steps, iterations, r: tl.constexpr, R: tl.constexpr):
    pair, many = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    A, Z = load_matrix(a, pair, r, r, R, R), load_matrix(start, pair, r, r, R, R)
    for step in range(iterations):
        store_matrix(steps, Z, step * many + pair, r, r, R, R)
        _, _, F = _brackets(A, Z)
        Z = (13 * Z + _product(Z, F)) / 4
    store_matrix(z, Z, pair, r, r, R, R)


@triton.jit
@no_type_check
def backward(dz, a, steps, da, dstart, iterations, r: tl.constexpr, R: tl.constexpr):
    pair, many = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    A, g, dA = load_matrix(a, pair, r, r, R, R), load_matrix(dz, pair, r, r, R, R), tl.zeros([R, R], tl.float32)
    for step in range(iterations):
        Z = load_matrix(steps, (iterations - 1 - step) * many + pair, r, r, R, R)
        N, S, F = _brackets(A, Z)
        dF = _product(tl.trans(Z), g) / 4
        g = (13 * g + _product(g, tl.trans(F))) / 4
        dS = _product(tl.trans(N), dF)
        dN = 15 * dF + _product(dF, tl.trans(S)) + 7 * dS + _product(dS, tl.trans(N)) + _product(tl.trans(N), dS)
        dA -= _product(dN, tl.trans(Z))
        g -= _product(tl.trans(A), dN)
    store_matrix(da, dA, pair, r, r, R, R)
    store_matrix(dstart, g, pair, r, r, R, R)


@triton.jit
@no_type_check
def _brackets(A, Z):
    """N, S and F."""
    N = -_product(A, Z)
    S = 7 * N + _product(N, N)
    return N, S, 15 * N + _product(N, S)


@triton.jit
@no_type_check
def _product(a, b):
    return tl.dot(a, b, input_precision="tf32x3")
