"""Feature maps in Triton: a program has a part of the tokens of one row and head, and goes through them by tiles.

An entry of u = relu([x, -x]) is read off x where it is needed, so that nothing has to be rolled: entry j comes from
channel j mod c, from j = c on with the other sign. Only one of the two entries of a channel is above 0, and only its
gradient matters:

    du_j = sum_s g_sj u_{j-s} + g_s,j+s u_{j+s}      dx = du_j for x > 0, -du_{j+c} for x < 0

The angles of waves are (x . M) / (|x| + 1e-3), a product of x as it is stored with M in two halves:

    dangle = scale (dsin cos - dcos sin)      dx = (dangle M - x / |x| sum(dangle angle)) / (|x| + 1e-3)
"""

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.feature_map.operator import FeatureShape
from longspan.kernels.feature_map.reference import SMALLEST as LEAST
from longspan.kernels.launch import empty_like, strides
from longspan.kernels.operator import like
from longspan.kernels.tiles import dot, dot_halves, halves, jit, load, load_matrix, of, part, store

SMALLEST = tl.constexpr(LEAST)


def dpfp(shape: FeatureShape, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n r"]:
    phi = empty_like(x, 2 * shape.c * shape.features, x.dtype)
    _dpfp[_grid(shape, x)](x, phi, *_sizes(shape, x), *strides(x, phi), **shape.dpfp)
    return phi


def dpfp_backward(
    shape: FeatureShape, dphi: Float[Tensor, "b h n r"], x: Float[Tensor, "b h n c"]
) -> Float[Tensor, "b h n c"]:
    (dx,) = like(x)
    _dpfp_backward[_grid(shape, x)](dphi, x, dx, *_sizes(shape, x), *strides(dphi, x, dx), **shape.dpfp)
    return dx


def waves(
    shape: FeatureShape, x: Float[Tensor, "b h n c"], matrix: Float[Tensor, "h r c"], scale: float
) -> Float[Tensor, "b h n two_r"]:
    phi = empty_like(x, 2 * shape.features, x.dtype)
    _waves[_grid(shape, x)](x, matrix, phi, scale, *_sizes(shape, x), *strides(x, phi), **shape.waves)
    return phi


def waves_backward(
    shape: FeatureShape,
    dphi: Float[Tensor, "b h n two_r"],
    x: Float[Tensor, "b h n c"],
    matrix: Float[Tensor, "h r c"],
    scale: float,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "p b h r_ c_"]]:
    """The gradient of x, and that of each matrix from every part of every row."""
    (dx,), how = like(x), shape.waves
    parts = x.new_empty(shape.parts(x.shape[2]), *x.shape[:2], how["R"], how["C"], dtype=torch.float32)
    sizes = (scale, *_sizes(shape, x), *strides(dphi, x, dx))
    _waves_backward[_grid(shape, x)](dphi, x, matrix, dx, parts, *sizes, **how)
    return dx, parts


def _grid(shape: FeatureShape, x: Float[Tensor, "b h n c"]) -> tuple[int, int]:
    return shape.pairs, shape.parts(x.shape[2])


def _sizes(shape: FeatureShape, x: Float[Tensor, "b h n c"]) -> tuple[int, int, int]:
    """Heads, tokens, and tokens of a part."""
    return x.shape[1], x.shape[2], shape.tokens_per_part(x.shape[2])


@jit
def _dpfp(
    x, phi, heads, n, share, x_b, x_h, x_t, p_b, p_h, p_t,
    c: tl.constexpr, C: tl.constexpr, U: tl.constexpr, NU: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    x, phi = of(x, row, head, x_b, x_h), of(phi, row, head, p_b, p_h)
    entries = tl.arange(0, U)[None, :]
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        there = (tokens < last)[:, None] & (entries < 2 * c)
        at, to = (tokens.to(tl.int64) * x_t)[:, None], (tokens.to(tl.int64) * p_t)[:, None] + entries
        u = _entry(x + at, entries, there, c)  # [T, U]
        for roll in tl.static_range(1, NU + 1):  # pyright: ignore[reportGeneralTypeIssues]
            product = u * _entry(x + at, (entries + 2 * c - roll) % (2 * c), there, c)
            tl.store(phi + to + (roll - 1) * 2 * c, product.to(phi.dtype.element_ty), mask=there)


@jit
def _dpfp_backward(
    dphi, x, dx, heads, n, share, g_b, g_h, g_t, x_b, x_h, x_t, dx_b, dx_h, dx_t,
    c: tl.constexpr, C: tl.constexpr, U: tl.constexpr, NU: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    dphi, x, dx = of(dphi, row, head, g_b, g_h), of(x, row, head, x_b, x_h), of(dx, row, head, dx_b, dx_h)
    channels = tl.arange(0, C)[None, :]
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        there = (tokens < last)[:, None] & (channels < c)
        at, to = (tokens.to(tl.int64) * x_t)[:, None], (tokens.to(tl.int64) * g_t)[:, None]
        own = tl.load(x + at + channels, mask=there, other=0.0)  # [T, C]
        entry = tl.where(own < 0, channels + c, channels)  # the one above 0
        du = tl.zeros([T, C], tl.float32)
        for roll in tl.static_range(1, NU + 1):
            g, before, after = (
                dphi + to + (roll - 1) * 2 * c,
                (entry + 2 * c - roll) % (2 * c),
                (entry + roll) % (2 * c),
            )
            du += tl.load(g + entry, mask=there, other=0.0).to(tl.float32) * _entry(x + at, before, there, c)
            du += tl.load(g + after, mask=there, other=0.0).to(tl.float32) * _entry(x + at, after, there, c)
        store(dx, tl.where(own > 0, du, tl.where(own < 0, -du, 0.0)), tokens, dx_t, tokens < last, c, C)


@jit
def _entry(x, entry, there, c: tl.constexpr):
    """relu([x, -x]) at these entries."""
    value = tl.load(x + entry % c, mask=there, other=0.0).to(tl.float32)
    return tl.maximum(tl.where(entry < c, value, -value), 0.0)


@jit
def _waves(
    x, matrix, phi, scale, heads, n, share, x_b, x_h, x_t, p_b, p_h, p_t,
    c: tl.constexpr, C: tl.constexpr, r: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    x, phi = of(x, row, head, x_b, x_h), of(phi, row, head, p_b, p_h)
    high, low = halves(load_matrix(matrix, head, r, c, R, C).to(tl.float32), x)  # [R, C]
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        there = tokens < last
        tx = load(x, tokens, x_t, there, c, C)
        _, angles = _norm_and_angles(tx, high, low)  # [T, R]
        store(phi, scale * tl.sin(angles), tokens, p_t, there, r, R)
        store(phi + r, scale * tl.cos(angles), tokens, p_t, there, r, R)


@jit
def _waves_backward(
    dphi, x, matrix, dx, parts, scale, heads, n, share, g_b, g_h, g_t, x_b, x_h, x_t, dx_b, dx_h, dx_t,
    c: tl.constexpr, C: tl.constexpr, r: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head, first, last = part(heads, n, share)
    dphi, x, dx = of(dphi, row, head, g_b, g_h), of(x, row, head, x_b, x_h), of(dx, row, head, dx_b, dx_h)
    high, low = halves(load_matrix(matrix, head, r, c, R, C).to(tl.float32), x)  # [R, C]
    dmatrix = tl.zeros([R, C], tl.float32)
    for start in range(first, last, T):
        tokens = start + tl.arange(0, T)
        there = tokens < last
        tx = load(x, tokens, x_t, there, c, C)
        norm, angles = _norm_and_angles(tx, high, low)
        of_sine = load(dphi, tokens, g_t, there, r, R).to(tl.float32)
        of_cosine = load(dphi + r, tokens, g_t, there, r, R).to(tl.float32)
        dangles = scale * (of_sine * tl.cos(angles) - of_cosine * tl.sin(angles))
        along = tl.sum(dangles * angles, axis=1) / tl.where(norm > 0, norm, 1.0)
        dangles = (dangles / (norm + SMALLEST)[:, None]).to(tx.dtype)
        found = dot(dangles, high, tl.zeros([T, C], tl.float32))
        found -= tx.to(tl.float32) * (along / (norm + SMALLEST))[:, None]
        store(dx, found, tokens, dx_t, there, c, C)
        dmatrix = dot(tl.trans(dangles), tx, dmatrix)
    place = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (R * C)
    tl.store(parts + place + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], dmatrix)


@jit
def _norm_and_angles(x, high, low):
    """|x| [T], and (x . M) / (|x| + 1e-3) [T, R]."""
    single = x.to(tl.float32)
    norm = tl.sqrt(tl.sum(single * single, axis=1))
    return norm, dot_halves(x, tl.trans(high), tl.trans(low)) / (norm + SMALLEST)[:, None]
