"""Linear attention on ragged rows in Triton: forth and back every token is read once, and nothing else is large.

With u_s = (v_s, 1), the sums of a row and head are one matrix M [e+1, r], S above z; d_t is the denominator of y_t.

    forth   M = sum_s u_s phi(k_s)^T      (y_t d_t, d_t - eps) = M phi(q_t)
    back    w_t = (dy_t, -dy_t . y_t) / d_t      dphi(q_t) = M^T w_t      dM = sum_t w_t phi(q_t)^T
            dphi(k_s) = dM^T u_s      du_s = dM phi(k_s)

Neither y nor d is kept: d_t comes again from z, and dy_t . y_t = phi(q_t) . S^T dy_t / d_t from a product that
dphi(q_t) needs anyway. A program owns a part of one row of one head; programs that sum write a matrix per part, and
these are added in order, so that no two runs differ. Tiles of bfloat16 meet in tensor cores: a matrix of sums goes in
as two of them, its rounded self and the rest, and so keeps its precision. Products of float32 are not rounded at all.
"""

from typing import no_type_check  # a Triton function is no Python function, and its annotations are no types

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.tiles import dot, dot_sums

# Tokens of a tile, warps of a program and tiles in flight, by bytes of a number and whether a width is above 64. Chosen
# so that M and what is made of a tile stay in registers and in 88 KiB of shared memory, 160 KiB for wide ones.
SHAPES = {(2, False): (64, 4, 3), (2, True): (32, 8, 2), (4, False): (16, 8, 3), (4, True): (16, 16, 3)}
TILES_EACH = 4  # tiles a program takes at least, lest loading or writing M cost more than the tokens
PROGRAMS = 512  # as many as the largest GPUs hold at once; further cuts would only add matrices to write and add up


def sum_keys(
    k: Float[Tensor, "t h r"],
    v: Float[Tensor, "t h e"],
    cu_seqlens: Int[Tensor, " b_plus_1"],
    max_seqlen: int,
    elu: bool,
) -> Float[Tensor, "b h e_plus_1 r"]:
    rows, heads, r, e = len(cu_seqlens) - 1, *k.shape[1:], v.shape[2]
    how = launch(k, e)
    parts = parts_of_a_sum(rows * heads, max_seqlen, how["T"])
    sums = k.new_empty(parts, rows, heads, e + 1, r, dtype=torch.float32)
    _sum_keys[(rows * heads, parts)](k, v, cu_seqlens, sums, heads, ELU=elu, **how)
    return added(sums)


def read(
    q: Float[Tensor, "n h r"],
    sums: Float[Tensor, "b h e_plus_1 r"],
    cu_seqlens: Int[Tensor, " b_plus_1"],
    max_seqlen: int,
    elu: bool,
    eps: float,
) -> Float[Tensor, "n h e"]:
    heads, e = q.shape[1], sums.shape[2] - 1
    how = launch(q, e)
    y = q.new_empty(len(q), heads, e)
    grid = ((len(cu_seqlens) - 1) * heads, parts_of_a_row(max_seqlen, how["T"]))
    _read[grid](q, sums, cu_seqlens, y, heads, eps, ELU=elu, **how)
    return y


def back_to_queries(
    dy: Float[Tensor, "n h e"],
    q: Float[Tensor, "n h r"],
    sums: Float[Tensor, "b h e_plus_1 r"],
    cu_seqlens: Int[Tensor, " b_plus_1"],
    max_seqlen: int,
    elu: bool,
    eps: float,
) -> tuple[Float[Tensor, "n h r"], Float[Tensor, "b h e_plus_1 r"]]:
    """The gradients of the queries and of the sums."""
    rows, heads = sums.shape[:2]
    how = launch(q, dy.shape[2])
    parts = parts_of_a_sum(rows * heads, max_seqlen, how["T"])
    dq, dsums = torch.empty_like(q), sums.new_empty(parts, *sums.shape)
    _back_to_queries[(rows * heads, parts)](dy, q, sums, cu_seqlens, dq, dsums, heads, eps, ELU=elu, **how)
    return dq, added(dsums)


def back_to_keys(
    k: Float[Tensor, "t h r"],
    v: Float[Tensor, "t h e"],
    dsums: Float[Tensor, "b h e_plus_1 r"],
    cu_seqlens: Int[Tensor, " b_plus_1"],
    max_seqlen: int,
    elu: bool,
) -> tuple[Float[Tensor, "t h r"], Float[Tensor, "t h e"]]:
    """The gradients of the keys and of the values."""
    rows, heads = dsums.shape[:2]
    how = launch(k, v.shape[2])
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    _back_to_keys[(rows * heads, parts_of_a_row(max_seqlen, how["T"]))](
        k, v, dsums, cu_seqlens, dk, dv, heads, ELU=elu, **how
    )
    return dk, dv


def launch(x: Float[Tensor, "t h r"], e: int) -> dict:
    """Widths, the powers of two they are filled up to, and the shape of a program."""
    r = x.shape[2]
    tile, warps, stages = SHAPES[x.element_size(), max(r, e) > 64]
    sizes = {"r": r, "e": e, "R": triton.next_power_of_2(r), "E": triton.next_power_of_2(e), "T": tile}
    return sizes | {"num_warps": warps, "num_stages": stages}


def parts_of_a_row(max_seqlen: int, tile: int) -> int:
    return max(1, -(-max_seqlen // (TILES_EACH * tile)))


def parts_of_a_sum(pairs: int, max_seqlen: int, tile: int) -> int:
    """As few as fill the device, for each writes a matrix; the same for the same shapes, whatever the device."""
    return min(-(-PROGRAMS // max(1, pairs)), parts_of_a_row(max_seqlen, tile))


def added(parts: Float[Tensor, "p b h e_plus_1 r"]) -> Float[Tensor, "b h e_plus_1 r"]:
    return parts[0] if len(parts) == 1 else parts.sum(dim=0)


@triton.jit
@no_type_check
def _sum_keys(
    k, v, cu_seqlens, sums, heads, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    ELU: tl.constexpr,
):  # fmt: skip
    first, last, head = _part(cu_seqlens, heads, T)
    S, z = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(first, last, T):
        k_at, k_real = _tile(start, last, head, heads, r, R, T)
        v_at, v_real = _tile(start, last, head, heads, e, E, T)
        fk, _ = _features(tl.load(k + k_at, mask=k_real, other=0.0), k_real, ELU)  # [T, R]
        S = dot(tl.trans(tl.load(v + v_at, mask=v_real, other=0.0)), fk, S)
        z += tl.sum(fk.to(tl.float32), axis=0)
    _store_sums(sums, S, z, r, e, R, E)


@triton.jit
@no_type_check
def _read(
    q, sums, cu_seqlens, y, heads, eps, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    first, last, head = _part(cu_seqlens, heads, T)
    S, z = _load_sums(sums, r, e, R, E)
    for start in range(first, last, T):
        q_at, q_real = _tile(start, last, head, heads, r, R, T)
        y_at, y_real = _tile(start, last, head, heads, e, E, T)
        fq, _ = _features(tl.load(q + q_at, mask=q_real, other=0.0), q_real, ELU)  # [T, R]
        d = tl.sum(fq.to(tl.float32) * z[None, :], axis=1) + eps  # [T]
        tl.store(y + y_at, (dot_sums(fq, tl.trans(S)) / d[:, None]).to(y.dtype.element_ty), mask=y_real)


@triton.jit
@no_type_check
def _back_to_queries(
    dy, q, sums, cu_seqlens, dq, dsums, heads, eps, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    first, last, head = _part(cu_seqlens, heads, T)
    S, z = _load_sums(sums, r, e, R, E)
    dS, dz = tl.zeros([E, R], tl.float32), tl.zeros([R], tl.float32)
    for start in range(first, last, T):
        q_at, q_real = _tile(start, last, head, heads, r, R, T)
        y_at, y_real = _tile(start, last, head, heads, e, E, T)
        fq, slope = _features(tl.load(q + q_at, mask=q_real, other=0.0), q_real, ELU)  # [T, R]
        single = fq.to(tl.float32)
        d = tl.sum(single * z[None, :], axis=1) + eps  # [T]
        w = (tl.load(dy + y_at, mask=y_real, other=0.0).to(tl.float32) / d[:, None]).to(fq.dtype)  # [T, E]
        g = dot_sums(w, S)  # [T, R], all of dphi(q) that does not come through the denominator
        dd = -tl.sum(single * g, axis=1) / d  # [T], the last entry of w_t
        tl.store(dq + q_at, ((g + dd[:, None] * z[None, :]) * slope).to(dq.dtype.element_ty), mask=q_real)
        dS = dot(tl.trans(w), fq, dS)
        dz += tl.sum(single * dd[:, None], axis=0)
    _store_sums(dsums, dS, dz, r, e, R, E)


@triton.jit
@no_type_check
def _back_to_keys(
    k, v, dsums, cu_seqlens, dk, dv, heads, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    first, last, head = _part(cu_seqlens, heads, T)
    dS, dz = _load_sums(dsums, r, e, R, E)
    for start in range(first, last, T):
        k_at, k_real = _tile(start, last, head, heads, r, R, T)
        v_at, v_real = _tile(start, last, head, heads, e, E, T)
        fk, slope = _features(tl.load(k + k_at, mask=k_real, other=0.0), k_real, ELU)  # [T, R]
        g = dot_sums(tl.load(v + v_at, mask=v_real, other=0.0), dS) + dz[None, :]  # [T, R]
        tl.store(dk + k_at, (g * slope).to(dk.dtype.element_ty), mask=k_real)
        tl.store(dv + v_at, dot_sums(fk, tl.trans(dS)).to(dv.dtype.element_ty), mask=v_real)


@triton.jit
@no_type_check
def _part(cu_seqlens, heads, T: tl.constexpr):
    """The tokens of this program: the second axis of the grid cuts every row into whole tiles, evenly."""
    row = tl.program_id(0) // heads  # heads of one row are neighbours, for their tokens lie side by side
    begin, end = tl.load(cu_seqlens + row).to(tl.int64), tl.load(cu_seqlens + row + 1).to(tl.int64)
    share = tl.cdiv(tl.cdiv(end - begin, T), tl.num_programs(1)) * T
    first = begin + tl.program_id(1) * share
    return first, tl.minimum(first + share, end), tl.program_id(0) % heads


@triton.jit
@no_type_check
def _tile(start, last, head, heads, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    """Where a tile [T, C] of x [t h c] lies, and which of it exists."""
    tokens, channels = tl.arange(0, T), tl.arange(0, C)
    real = (start + tokens < last)[:, None] & (channels < c)[None, :]
    return (start * heads + head) * c + (tokens * heads * c)[:, None] + channels[None, :], real


@triton.jit
@no_type_check
def _features(x, real, ELU: tl.constexpr):
    """phi(x), rounded to the type of x, and its slope; phi is 0 where nothing is, which elu(0) + 1 is not."""
    single = x.to(tl.float32)
    phi, slope = single, tl.full(x.shape, 1.0, tl.float32)
    if ELU:
        falling = tl.exp(tl.minimum(single, 0.0))
        phi, slope = tl.where(single > 0, single + 1, falling), tl.where(single > 0, 1.0, falling)
    return tl.where(real, phi, 0.0).to(x.dtype), slope


@triton.jit
@no_type_check
def _sums_at(part, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """Where S [E, R] and z [R] of this row and head lie in [p b h e+1 r], and which of them exist."""
    values, channels = tl.arange(0, E), tl.arange(0, R)
    begin = (part * tl.num_programs(0).to(tl.int64) + tl.program_id(0)) * ((e + 1) * r)
    real = (values < e)[:, None] & (channels < r)[None, :]
    return begin + values[:, None] * r + channels[None, :], real, begin + e * r + channels, channels < r


@triton.jit
@no_type_check
def _load_sums(sums, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    S_at, S_real, z_at, z_real = _sums_at(0, r, e, R, E)
    return tl.load(sums + S_at, mask=S_real, other=0.0), tl.load(sums + z_at, mask=z_real, other=0.0)


@triton.jit
@no_type_check
def _store_sums(sums, S, z, r: tl.constexpr, e: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    S_at, S_real, z_at, z_real = _sums_at(tl.program_id(1), r, e, R, E)
    tl.store(sums + S_at, S, mask=S_real)
    tl.store(sums + z_at, z, mask=z_real)
