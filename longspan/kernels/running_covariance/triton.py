"""A running covariance in Triton: a program has one chunk of one head, and goes along its tokens.

The current covariance [C, C], channel of queries by channel of keys, stays in registers. In the backward pass that of
each token is recomputed from the sums before the chunk, by a product over the PART tokens around it: subtracting tokens
one by one would leave the rounding errors of larger sums behind. Channels beyond c are 0, and have no weight.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

PART = tl.constexpr(16)  # tokens: the fewest that a product takes
LEAST = tl.constexpr(1e-24)  # of a square, that of `reference.SMALLEST`


@triton.jit
@no_type_check
def forward(
    q, k, v, temperature, covariance, square_q, square_k, y,
    h, t, chunks, c: tl.constexpr, C: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    program, at = tl.program_id(0).to(tl.int64), tl.arange(0, C)
    pair, chunk = program // chunks, program % chunks
    real = at < c
    here = (pair * t + chunk * TOKENS) * c + at
    heat = tl.load(temperature + pair % h)
    both = tl.load(_square(covariance, program, c, C), mask=real[:, None] & real[None, :], other=0.0)
    of_q = tl.load(square_q + program * c + at, mask=real, other=0.0)
    of_k = tl.load(square_k + program * c + at, mask=real, other=0.0)
    for _ in range(tl.minimum(TOKENS, t - chunk * TOKENS)):
        one_q = tl.load(q + here, mask=real, other=0.0)
        one_k = tl.load(k + here, mask=real, other=0.0)
        one_v = tl.load(v + here, mask=real, other=0.0)
        both += one_q[:, None] * one_k[None, :]
        of_q += one_q * one_q
        of_k += one_k * one_k
        cosine = both * _inverse_norm(of_q)[:, None] * _inverse_norm(of_k)[None, :]
        tl.store(y + here, tl.sum(_weights(cosine, heat, real) * one_v[None, :], axis=1), mask=real)
        here += c


@triton.jit
@no_type_check
def backward(
    dy, q, k, v, temperature, covariance, square_q, square_k,
    dq, dk, dv, dtemperature, dcovariance, dsquare_q, dsquare_k,
    h, t, chunks, c: tl.constexpr, C: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    program, at, row = tl.program_id(0).to(tl.int64), tl.arange(0, C), tl.arange(0, PART)
    pair, chunk = program // chunks, program % chunks
    real = at < c
    square = real[:, None] & real[None, :]
    tokens, here = tl.minimum(TOKENS, t - chunk * TOKENS), (pair * t + chunk * TOKENS) * c
    heat = tl.load(temperature + pair % h)
    onto_both, onto_heat = tl.zeros([C, C], tl.float32), tl.zeros([C], tl.float32)
    onto_q, onto_k = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for back in range(TOKENS // PART):
        first = TOKENS - (back + 1) * PART
        if first < tokens:
            before = tl.load(_square(covariance, program, c, C), mask=square, other=0.0)
            q_before = tl.load(square_q + program * c + at, mask=real, other=0.0)
            k_before = tl.load(square_k + program * c + at, mask=real, other=0.0)
            for earlier in range(0, first, PART):
                some_q = _rows(q + here, earlier, tokens, c, C)
                some_k = _rows(k + here, earlier, tokens, c, C)
                before += tl.dot(tl.trans(some_q), some_k, input_precision="ieee")
                q_before += tl.sum(some_q * some_q, axis=0)
                k_before += tl.sum(some_k * some_k, axis=0)
            some_q, some_k = _rows(q + here, first, tokens, c, C), _rows(k + here, first, tokens, c, C)
            for behind in range(PART):
                token = first + PART - 1 - behind
                if token < tokens:
                    place = here + token * c + at
                    one_q = tl.load(q + place, mask=real, other=0.0)
                    one_k = tl.load(k + place, mask=real, other=0.0)
                    one_v = tl.load(v + place, mask=real, other=0.0)
                    one_d = tl.load(dy + place, mask=real, other=0.0)
                    past_q = tl.where((first + row <= token)[:, None], some_q, 0.0)
                    past_k = tl.where((first + row <= token)[:, None], some_k, 0.0)
                    both = before + tl.dot(tl.trans(past_q), past_k, input_precision="ieee")
                    of_q = q_before + tl.sum(past_q * past_q, axis=0)
                    of_k = k_before + tl.sum(past_k * past_k, axis=0)
                    by_q, by_k = _inverse_norm(of_q), _inverse_norm(of_k)
                    cosine = both * by_q[:, None] * by_k[None, :]
                    weights = _weights(cosine, heat, real)
                    mixed = tl.sum(weights * one_v[None, :], axis=1)
                    score = weights * one_d[:, None] * (one_v[None, :] - mixed[:, None])
                    through = score * cosine
                    along_q = tl.sum(through, axis=1)
                    onto_heat += along_q
                    onto_both += heat * score * by_q[:, None] * by_k[None, :]
                    onto_q += tl.where(of_q >= LEAST, -0.5 * heat * along_q * by_q * by_q, 0.0)
                    onto_k += tl.where(of_k >= LEAST, -0.5 * heat * tl.sum(through, axis=0) * by_k * by_k, 0.0)
                    to_q = tl.sum(onto_both * one_k[None, :], axis=1) + 2 * one_q * onto_q
                    to_k = tl.sum(onto_both * one_q[:, None], axis=0) + 2 * one_k * onto_k
                    tl.store(dq + place, to_q, mask=real)
                    tl.store(dk + place, to_k, mask=real)
                    tl.store(dv + place, tl.sum(weights * one_d[:, None], axis=0), mask=real)
    tl.store(dtemperature + program, tl.sum(onto_heat, axis=0))
    tl.store(_square(dcovariance, program, c, C), onto_both, mask=square)
    tl.store(dsquare_q + program * c + at, onto_q, mask=real)
    tl.store(dsquare_k + program * c + at, onto_k, mask=real)


@triton.jit
@no_type_check
def _square(x, program, c: tl.constexpr, C: tl.constexpr):
    """Where the numbers of a matrix lie."""
    at = tl.arange(0, C)
    return x + program * c * c + at[:, None] * c + at[None, :]


@triton.jit
@no_type_check
def _rows(x, first, tokens, c: tl.constexpr, C: tl.constexpr):
    """PART tokens, 0 beyond the last."""
    row, at = first + tl.arange(0, PART), tl.arange(0, C)
    return tl.load(x + row[:, None] * c + at[None, :], mask=(row < tokens)[:, None] & (at < c)[None, :], other=0.0)


@triton.jit
@no_type_check
def _inverse_norm(square):
    return 1 / tl.sqrt(tl.maximum(square, LEAST))


@triton.jit
@no_type_check
def _weights(cosine, heat, real):
    score = tl.where(real[None, :], heat * cosine, float("-inf"))
    e = tl.exp(score - tl.max(score, axis=1)[:, None])
    return e / tl.sum(e, axis=1)[:, None]
