"""Building blocks of Triton kernels; only files called triton.py import them, since Triton is not everywhere.

Tiles are rows of c channels, padded with 0 to a power of two C. Products of bfloat16 tiles use tensor cores, and those
of float32 are not rounded. An operand in single precision beside bfloat16 enters as two tiles, its rounded value and
the remainder, and so keeps its precision.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit` without type checks at run time: a Triton function's annotations are not Python types."""
    return triton.jit(inspect.unwrap(function))


@jit
def part(heads, n, share):
    """Row, head and tokens of this program, for a grid of pairs by parts."""
    first = tl.program_id(1) * share
    return tl.program_id(0) // heads, tl.program_id(0) % heads, first, tl.minimum(first + share, n)


@jit
def of(x, row, head, row_stride, head_stride):
    """Where the tokens of a row and head begin."""
    return x + row.to(tl.int64) * row_stride + head.to(tl.int64) * head_stride


@jit
def visible(mask, tokens, last, MASKED: tl.constexpr):
    """Which tokens of a row are real; `mask` is where its own begins."""
    there = tokens < last
    if MASKED:
        there = there & (tl.load(mask + tokens, mask=there, other=0) != 0)
    return there


@jit
def tile(tokens, stride, there, c: tl.constexpr, C: tl.constexpr):
    """Where some tokens [T, C] of a row and head lie, and which of their numbers exist."""
    channels = tl.arange(0, C)
    return (tokens.to(tl.int64) * stride)[:, None] + channels[None, :], there[:, None] & (channels < c)[None, :]


@jit
def load(x, tokens, stride, there, c: tl.constexpr, C: tl.constexpr):
    """Some tokens [T, C] of a row and head, 0 where there is none."""
    at, real = tile(tokens, stride, there, c, C)
    return tl.load(x + at, mask=real, other=0.0)


@jit
def load_visible(x, mask, tokens, last, stride, c: tl.constexpr, C: tl.constexpr, MASKED: tl.constexpr):
    """The same for real tokens only; the mask comes last, so that stores to these tokens can share the rest."""
    at, real = tile(tokens, stride, tokens < last, c, C)
    if MASKED:
        real = real & visible(mask, tokens, last, MASKED)[:, None]
    return tl.load(x + at, mask=real, other=0.0)


@jit
def store(x, rows, tokens, stride, there, c: tl.constexpr, C: tl.constexpr):
    """Rows [T, C] to where these tokens lie, in the type of the destination."""
    at, real = tile(tokens, stride, there, c, C)
    tl.store(x + at, rows.to(x.dtype.element_ty), mask=real)


@jit
def load_matrix(x, place, r: tl.constexpr, c: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """One of several contiguous matrices [r, c], as a tile [R, C]."""
    rows, channels = tl.arange(0, R), tl.arange(0, C)
    real = (rows < r)[:, None] & (channels < c)[None, :]
    return tl.load(x + place * (r * c) + rows[:, None] * c + channels[None, :], mask=real, other=0.0)


@jit
def store_matrix(x, matrix, place, r: tl.constexpr, c: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    rows, channels = tl.arange(0, R), tl.arange(0, C)
    real = (rows < r)[:, None] & (channels < c)[None, :]
    tl.store(x + place * (r * c) + rows[:, None] * c + channels[None, :], matrix, mask=real)


@jit
def dot(a, b, sums):
    """sums + a @ b."""
    return tl.dot(a, b, sums, input_precision="ieee")


@jit
def dot_sums(a, sums):
    """a @ sums for sums in single precision, whatever the type of a."""
    rounded = sums.to(a.dtype)
    product = tl.dot(a, rounded, input_precision="ieee")
    if a.dtype != tl.float32:
        product = tl.dot(a, (sums - rounded.to(tl.float32)).to(a.dtype), product)
    return product


@jit
def dot_single(a, b, sums):
    """sums + a @ b for a in single precision, whatever the type of b."""
    rounded = a.to(b.dtype)
    sums = dot(rounded, b, sums)
    if b.dtype != tl.float32:
        sums = tl.dot((a - rounded.to(tl.float32)).to(b.dtype), b, sums)
    return sums


@jit
def halves(x, like):
    """x rounded to the type of what `like` points at, and the remainder, of which float32 has none."""
    rounded = x.to(like.dtype.element_ty)
    return rounded, (x - rounded.to(tl.float32)).to(like.dtype.element_ty)


@jit
def dot_halves(a, b, rest):
    """a @ (b + rest)."""
    product = tl.dot(a, b, input_precision="ieee")
    if a.dtype != tl.float32:
        product = tl.dot(a, rest, product)
    return product


@jit
def halves_dot(a, rest, b):
    """(a + rest) @ b."""
    product = tl.dot(a, b, input_precision="ieee")
    if b.dtype != tl.float32:
        product = tl.dot(rest, b, product)
    return product


@jit
def single_dot_halves(a, b, rest):
    """a @ (b + rest) for a in single precision."""
    rounded = a.to(b.dtype)
    product = tl.dot(rounded, b, input_precision="ieee")
    if b.dtype != tl.float32:
        product = tl.dot(rounded, rest, product)
        product = tl.dot((a - rounded.to(tl.float32)).to(b.dtype), b, product)
    return product


@jit
def online_softmax(scores, top, total, sums):
    """One step of the online softmax over a tile of scores [T, S] in base 2, hidden ones -inf.

    Returns the weights of the tile, and the running maximum [T], total [T] and sums [T, E] brought to the new maximum.
    """
    higher = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # so far nothing is visible
    weights, fade = tl.exp2(scores - base[:, None]), tl.exp2(top - base)
    return weights, higher, total * fade + tl.sum(weights, axis=1), sums * fade[:, None]
