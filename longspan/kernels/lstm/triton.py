"""The LSTM in Triton: a program has one row of the batch, goes along all its tokens, and holds W in registers.

W is four tiles [R, R], gate by state. The products of a step are sums over tiles, so that nothing is rounded to TF32.
What a step reads is loaded during the step before it, since it does not depend on the states. Channels beyond r are 0
throughout: there g = tanh(0), so that cells stay 0.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl


@triton.jit
@no_type_check
def forward(z, recurrent, h, kept, n, r: tl.constexpr, R: tl.constexpr):
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, R)
    real = channel < r
    z, h, kept = z + row * n * (4 * r) + channel, h + row * n * r + channel, kept + row * n * (5 * r) + channel
    to_i, to_f, to_g, to_o = _tiles(recurrent, r, R)
    i, f, g, o = _four(z, real, r)
    state, c = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    for t in range(n):
        z += 4 * r
        next_i, next_f, next_g, next_o = _four(z, real & (t + 1 < n), r)
        last = state[None, :]
        i = _sigmoid(i + tl.sum(to_i * last, axis=1))
        f = _sigmoid(f + tl.sum(to_f * last, axis=1))
        g = _tanh(g + tl.sum(to_g * last, axis=1))
        o = _sigmoid(o + tl.sum(to_o * last, axis=1))
        c = f * c + i * g
        state = o * _tanh(c)
        tl.store(h, state, mask=real)
        tl.store(kept, c, mask=real)
        tl.store(kept + r, i, mask=real)
        tl.store(kept + 2 * r, f, mask=real)
        tl.store(kept + 3 * r, g, mask=real)
        tl.store(kept + 4 * r, o, mask=real)
        h, kept = h + r, kept + 5 * r
        i, f, g, o = next_i, next_f, next_g, next_o


@triton.jit
@no_type_check
def backward(dh, kept, recurrent, dz, n, r: tl.constexpr, R: tl.constexpr):
    last, channel = (tl.program_id(0).to(tl.int64) + 1) * n - 1, tl.arange(0, R)
    real = channel < r
    dh, kept, dz = dh + last * r + channel, kept + last * (5 * r) + channel, dz + last * (4 * r) + channel
    to_i, to_f, to_g, to_o = _tiles(recurrent, r, R)
    d, c = tl.load(dh, mask=real, other=0.0), tl.load(kept, mask=real, other=0.0)
    i, f, g, o = _four(kept + r, real, r)
    onto_h, onto_c = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    for back in range(n):
        dh, kept = dh - r, kept - 5 * r
        there = real & (back + 1 < n)
        d_before, c_before = tl.load(dh, mask=there, other=0.0), tl.load(kept, mask=there, other=0.0)
        i_before, f_before, g_before, o_before = _four(kept + r, there, r)
        top, d = _tanh(c), d + onto_h
        dc = d * o * (1 - top * top) + onto_c
        di, df = dc * g * i * (1 - i), dc * c_before * f * (1 - f)
        dg, do = dc * i * (1 - g * g), d * top * o * (1 - o)
        tl.store(dz, di, mask=real)
        tl.store(dz + r, df, mask=real)
        tl.store(dz + 2 * r, dg, mask=real)
        tl.store(dz + 3 * r, do, mask=real)
        dz -= 4 * r
        all_gates = to_i * di[:, None] + to_f * df[:, None] + to_g * dg[:, None] + to_o * do[:, None]
        onto_h, onto_c = tl.sum(all_gates, axis=0), dc * f
        d, c, i, f, g, o = d_before, c_before, i_before, f_before, g_before, o_before


@triton.jit
@no_type_check
def _tiles(recurrent, r: tl.constexpr, R: tl.constexpr):
    """The matrices [R, R] from the states to each gate."""
    at = tl.arange(0, R)
    real = (at < r)[:, None] & (at < r)[None, :]
    place = recurrent + at[:, None] * r + at[None, :]
    return (
        tl.load(place, mask=real, other=0.0),
        tl.load(place + r * r, mask=real, other=0.0),
        tl.load(place + 2 * r * r, mask=real, other=0.0),
        tl.load(place + 3 * r * r, mask=real, other=0.0),
    )


@triton.jit
@no_type_check
def _four(x, real, r: tl.constexpr):
    """Four vectors stored one after another, as gates are."""
    return (
        tl.load(x, mask=real, other=0.0),
        tl.load(x + r, mask=real, other=0.0),
        tl.load(x + 2 * r, mask=real, other=0.0),
        tl.load(x + 3 * r, mask=real, other=0.0),
    )


@triton.jit
@no_type_check
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
@no_type_check
def _tanh(x):
    """By exponentials, and near 0, where these cancel, by its series: six digits at least."""
    e, s = tl.exp(-2 * tl.abs(x)), x * x
    far = (1 - e) / (1 + e)
    series = x * (1 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835)))))
    return tl.where(s < 0.09, series, tl.where(x < 0, -far, far))
