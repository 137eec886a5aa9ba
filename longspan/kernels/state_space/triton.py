"""What surrounds the matrix products of a recurrence in chunks, in Triton: transpositions, scans, and powers.

    into_rows     tokens [b n d] as rows of chunks, channel by channel [d b i t]; backward, times the slope of GELU
    out_of_rows   the other way round; forward, through GELU
    scan          z_{i+1} = M z_i + V u_i, chunk after chunk, from the right for the second half of the states
    double        of rows x A^t with t < h the next h, and the square of the matrix that makes them
    halve         the gradients of what `double` made, given to what it made them of

Rows are as wide as tokens and states of a chunk together: `scan` writes its states beside the tokens that
`into_rows` wrote, where one product reads both. The state itself is kept in float32.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.launch import next_power_of_2

TILE = {"D": 64, "num_warps": 8}  # features, by the tokens of a chunk
CHUNKS = 32  # that a program of states which do not mix takes at once
ROWS = 16  # that go through a product together, the fewest that a tensor core takes
BLOCK = 32  # rows of a matrix of gradients that a program has

SIZES = ["n", "batch", "chunks", "sides"]  # not specialised: they need no program of their own


def into_rows(
    x: Float[Tensor, "b n cd"],
    order: Int[Tensor, "b n"] | None,
    rows: Float[Tensor, "d b i width"],
    length: int,
    before: Float[Tensor, "d b i ct"] | None = None,
) -> None:
    """The `length` tokens of each chunk, times the slope of GELU at its input `before`, if given."""
    b, n, total = x.shape
    d, _, chunks, width = rows.shape
    _into_rows[(b * chunks, triton.cdiv(total, TILE["D"]))](
        x, order, rows, before, n, total, d, b, chunks, width, total // d * length, T=length,
        ORDERED=order is not None, GELU=before is not None, **TILE,
    )  # fmt: skip


def out_of_rows(
    rows: Float[Tensor, "d b i ct"], places: Int[Tensor, "b n"] | None, tokens: Float[Tensor, "b n cd"], gelu: bool
) -> None:
    b, n, total = tokens.shape
    d, _, chunks, width = rows.shape
    _out_of_rows[(b * chunks, triton.cdiv(total, TILE["D"]))](
        rows, places, tokens, n, total, d, b, chunks, width, T=width // (total // d),
        ORDERED=places is not None, GELU=gelu, **TILE,
    )  # fmt: skip


def scan(
    v: Float[Tensor, "d b i s"],
    across: Float[Tensor, "d k l"],
    z: Float[Tensor, "d b i s"],
    diagonal: bool,
    backward: bool,
) -> None:
    """`across` is a matrix, or pairs of complex numbers; if `backward` it is transposed, and time reversed."""
    d, b, chunks, s = v.shape
    kinds = {"BACKWARD": backward, **launch(across.shape[1], diagonal)}
    shape = (b, chunks, s, z.stride(2), s // (kinds["k"] * (2 if diagonal else 1)))
    if diagonal:
        _scan_diagonal[(d * b, shape[-1])](v, across, z, *shape[:-1], **kinds)
    else:
        _scan_dense[(d, triton.cdiv(b * shape[-1], ROWS))](v, across, z, *shape, **kinds)


def double(rows: Float[Tensor, "d f t k"], squares: Float[Tensor, "d l k k"], level: int) -> None:
    d, families, length, k = rows.shape
    shape = (level, squares.shape[1], length)
    _next_rows[(d, families, triton.cdiv(1 << level, ROWS))](rows, squares, *shape, **launch(k))
    _square[(d, triton.cdiv(k, ROWS))](squares, *shape[:2], **launch(k))


def halve(
    drows: Float[Tensor, "d f t k"],
    dsquares: Float[Tensor, "d l k k"],
    rows: Float[Tensor, "d f t k"],
    squares: Float[Tensor, "d l k k"],
    level: int,
) -> None:
    d, families, length, k = rows.shape
    shape = (level, squares.shape[1], length)
    _square_backward[(d, triton.cdiv(k, BLOCK))](
        *(drows, dsquares, rows, squares, *shape, families), B=BLOCK, **launch(k)
    )
    _next_rows_backward[(d, families, triton.cdiv(1 << level, ROWS))](drows, squares, *shape, **launch(k))


def launch(k: int, diagonal: bool = False) -> dict[str, int]:
    """How many states mix or do not, the power of two they are padded to, and the shape of a program."""
    if diagonal:
        return {"k": k, "K": 1 << (k - 1).bit_length(), "L": CHUNKS, "num_warps": 4}
    return {"k": k, "K": next_power_of_2(k), "R": ROWS, "num_warps": 4 if k <= 64 else 8}


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _into_rows(
    x, order, rows, before, n, total, d, batch, chunks, width, before_width,
    T: tl.constexpr, D: tl.constexpr, ORDERED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    place, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * D + tl.arange(0, D)
    row, chunk = place // chunks, place % chunks
    within = tl.arange(0, T)
    token = chunk * T + within  # [T]
    if ORDERED:
        token = tl.load(order + row * n + token, mask=token < n, other=-1).to(tl.int64)
    real = (token >= 0) & (token < n)
    inside = columns < total
    tile = tl.load(
        x + (row * n + token)[:, None] * total + columns[None, :], mask=real[:, None] & inside[None, :], other=0.0
    )
    tile = tl.trans(tile)  # [D, T]
    line = ((columns % d).to(tl.int64) * batch + row) * chunks + chunk  # [D]
    at = ((columns // d) * T)[:, None] + within[None, :]
    if GELU:
        y = tl.load(before + (line * before_width)[:, None] + at, mask=inside[:, None], other=0.0).to(tl.float32)
        density = 0.3989422804014327 * tl.exp(-0.5 * y * y)
        slope = _normal(y) + y * density
        tile = (tile.to(tl.float32) * slope).to(rows.dtype.element_ty)
    tl.store(rows + (line * width)[:, None] + at, tile, mask=inside[:, None])


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _out_of_rows(
    rows, places, tokens, n, total, d, batch, chunks, width,
    T: tl.constexpr, D: tl.constexpr, ORDERED: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    place, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * D + tl.arange(0, D)
    row, chunk = place // chunks, place % chunks
    within = tl.arange(0, T)
    token = chunk * T + within  # [T]
    there, inside = token < n, columns < total
    line = ((columns % d).to(tl.int64) * batch + row) * (chunks * width) + (columns // d) * T  # [D]
    at = line[:, None] + (chunk * width + within)[None, :]
    if ORDERED:
        source = tl.load(places + row * n + token, mask=there, other=-1)
        there = source >= 0
        at = line[:, None] + ((source // T).to(tl.int64) * width + source % T)[None, :]
    tile = tl.load(rows + at, mask=inside[:, None] & there[None, :], other=0.0)  # [D, T]
    if GELU:
        y = tile.to(tl.float32)
        tile = (y * _normal(y)).to(tokens.dtype.element_ty)
    at = (row * n + token)[:, None] * total + columns[None, :]
    tl.store(tokens + at, tl.trans(tile), mask=(token < n)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _scan_diagonal(
    v, across, z, batch, chunks, s, width, k: tl.constexpr, K: tl.constexpr, L: tl.constexpr, BACKWARD: tl.constexpr
):
    """A program has the states of one channel, row and direction, and takes L chunks at a time."""
    line, side = tl.program_id(0).to(tl.int64), tl.program_id(1)
    states, steps = tl.arange(0, K), tl.arange(0, L)
    inside = states < k
    number = across + (line // batch) * (2 * k) + 2 * states
    a_re = tl.load(number, mask=inside, other=0.0)
    a_im = tl.load(number + 1, mask=inside, other=0.0)
    if BACKWARD:
        a_im = -a_im
    reversed_ = (side == 1) != BACKWARD
    column = side * (2 * k) + 2 * states  # [K]
    z_re, z_im = tl.zeros([K], tl.float32), tl.zeros([K], tl.float32)  # before the first of these chunks
    for first in range(0, chunks, L):
        i = first + steps  # [L]
        at = tl.where(reversed_, chunks - 1 - i, i).to(tl.int64)
        previous = tl.where(reversed_, at + 1, at - 1)
        there = (i < chunks)[:, None] & inside[None, :]
        known = there & (i > 0)[:, None]
        source = v + (line * chunks + previous)[:, None] * s + column[None, :]
        v_re = tl.load(source, mask=known, other=0.0).to(tl.float32)
        v_im = tl.load(source + 1, mask=known, other=0.0).to(tl.float32)
        p_re, p_im, x_re, x_im = tl.associative_scan(
            (tl.broadcast_to(a_re[None, :], [L, K]), tl.broadcast_to(a_im[None, :], [L, K]), v_re, v_im), 0, _then
        )
        x_re, x_im = (
            x_re + p_re * z_re[None, :] - p_im * z_im[None, :],
            x_im + p_re * z_im[None, :] + p_im * z_re[None, :],
        )
        target = z + (line * chunks + at)[:, None] * width + column[None, :]
        tl.store(target, x_re.to(z.dtype.element_ty), mask=there)
        tl.store(target + 1, x_im.to(z.dtype.element_ty), mask=there)
        last = (steps == L - 1)[:, None]
        z_re = tl.sum(tl.where(last, x_re, 0.0), axis=0)
        z_im = tl.sum(tl.where(last, x_im, 0.0), axis=0)


@triton.jit(do_not_specialize=SIZES)
@no_type_check
def _scan_dense(
    v, across, z, batch, chunks, s, width, sides,
    k: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """A program has the states of one channel for R rows, each of one direction, and goes chunk by chunk."""
    channel = tl.program_id(0).to(tl.int64)
    row, states = tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, K)
    inside = states < k
    M = _matrix(across + channel * k * k, k, k, K, K)
    if not BACKWARD:
        M = tl.trans(M)  # rows of states are multiplied by the transpose
    side = row // batch
    there = (side < sides)[:, None] & inside[None, :]
    line = (channel * batch + row % batch) * chunks  # [R]
    column = (side * k)[:, None] + states[None, :]
    reversed_ = (side == 1) != BACKWARD
    state = tl.zeros([R, K], tl.float32)
    for step in range(chunks):
        i = line + tl.where(reversed_, chunks - 1 - step, step)
        new = tl.load(v + i[:, None] * s + column, mask=there, other=0.0)
        tl.store(z + i[:, None] * width + column, state.to(z.dtype.element_ty), mask=there)
        state = tl.dot(state, M, input_precision="tf32x3") + new.to(tl.float32)


@triton.jit(do_not_specialize=["level"])
@no_type_check
def _next_rows(rows, squares, level, levels, length, k: tl.constexpr, K: tl.constexpr, R: tl.constexpr):
    channel, family, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * R
    h = 1 << level
    mine = rows + (channel * tl.num_programs(1) + family) * (length * k) + first * k
    P = _matrix_or_transpose(squares + (channel * levels + level) * (k * k), family == 0, k, K)
    X = _matrix(mine, h - first, k, R, K)
    _store(mine + h * k, tl.dot(X, P, input_precision="tf32x3"), h - first, k, R, K)


@triton.jit(do_not_specialize=["level"])
@no_type_check
def _square(squares, level, levels, k: tl.constexpr, K: tl.constexpr, R: tl.constexpr):
    mine = squares + (tl.program_id(0).to(tl.int64) * levels + level) * (k * k)
    first = tl.program_id(1) * R
    X = _matrix(mine + first * k, k - first, k, R, K)
    P = _matrix(mine, k, k, K, K)
    _store(mine + (k + first) * k, tl.dot(X, P, input_precision="tf32x3"), k - first, k, R, K)


@triton.jit(do_not_specialize=["level"])
@no_type_check
def _next_rows_backward(drows, squares, level, levels, length, k: tl.constexpr, K: tl.constexpr, R: tl.constexpr):
    channel, family, first = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2) * R
    h = 1 << level
    mine = drows + (channel * tl.num_programs(1) + family) * (length * k) + first * k
    P = _matrix_or_transpose(squares + (channel * levels + level) * (k * k), family != 0, k, K)
    dX, dY = _matrix(mine, h - first, k, R, K), _matrix(mine + h * k, h - first, k, R, K)
    _store(mine, tl.dot(dY, P, dX, input_precision="tf32x3"), h - first, k, R, K)


@triton.jit(do_not_specialize=["level"])
@no_type_check
def _square_backward(
    drows, dsquares, rows, squares, level, levels, length, families,
    B: tl.constexpr, k: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """B rows of the gradient of P, from its square and from every family of rows that it made."""
    channel, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * B
    h = 1 << level
    at = (channel * levels + level) * (k * k)
    dQ = _matrix(dsquares + at + k * k + first * k, k - first, k, B, K)  # of the square, these rows
    dP = tl.dot(dQ, _matrix_or_transpose(squares + at, True, k, K), input_precision="tf32x3")
    P = _columns(squares + at, first, k, k, B, K)
    dP = tl.dot(P, _matrix(dsquares + at + k * k, k, k, K, K), dP, input_precision="tf32x3")
    for family in range(families):
        for start in range(0, h, R):
            here = (channel * families + family) * (length * k) + start * k
            made_of, made, left = rows + here, drows + here + h * k, h - start
            if family == 0:
                one, other = _columns(made, first, left, k, B, R), _matrix(made_of, left, k, R, K)
            else:
                one, other = _columns(made_of, first, left, k, B, R), _matrix(made, left, k, R, K)
            dP = tl.dot(one, other, dP, input_precision="tf32x3")
    _store(dsquares + at + first * k, dP, k - first, k, B, K)


@triton.jit
@no_type_check
def _matrix(start, count, k: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """Rows of k numbers [R, K], 0 beyond the last."""
    r, states = tl.arange(0, R)[:, None], tl.arange(0, K)[None, :]
    return tl.load(start + r * k + states, mask=(r < count) & (states < k), other=0.0)


@triton.jit
@no_type_check
def _matrix_or_transpose(start, transposed, k: tl.constexpr, K: tl.constexpr):
    one, other = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
    at = tl.where(transposed, other * k + one, one * k + other)
    return tl.load(start + at, mask=(one < k) & (other < k), other=0.0)


@triton.jit
@no_type_check
def _columns(start, first, count, k: tl.constexpr, B: tl.constexpr, R: tl.constexpr):
    """B columns of such rows, from the first on, as rows [B, R]."""
    column, r = first + tl.arange(0, B)[:, None], tl.arange(0, R)[None, :]
    return tl.load(start + r * k + column, mask=(r < count) & (column < k), other=0.0)


@triton.jit
@no_type_check
def _store(start, tile, count, k: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    r, states = tl.arange(0, R)[:, None], tl.arange(0, K)[None, :]
    tl.store(start + r * k + states, tile, mask=(r < count) & (states < k))


@triton.jit
@no_type_check
def _then(a_re, a_im, x_re, x_im, b_re, b_im, y_re, y_im):
    """x -> a x + ..., then x -> b x + y."""
    return (
        a_re * b_re - a_im * b_im,
        a_re * b_im + a_im * b_re,
        b_re * x_re - b_im * x_im + y_re,
        b_re * x_im + b_im * x_re + y_im,
    )


@triton.jit
@no_type_check
def _normal(y):
    """The normal distribution function."""
    return 0.5 + 0.5 * tl.math.erf(0.7071067811865476 * y)
