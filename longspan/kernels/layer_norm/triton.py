"""The layer norm in Triton: a program has a tile of whole tokens, in the backward pass one tile after another.

    g = w dy      z = (x - mean) / s      dx = (g - mean(g) - z mean(g z)) / s      dw = sum dy z      db = sum dy

Moments are recomputed from each token. Each program adds up its own dw and db, and torch adds up those of all.
"""

from typing import no_type_check  # Triton functions are not Python functions, nor are their annotations types

import triton
import triton.language as tl

from longspan.kernels.tiles import load, store


@triton.jit
@no_type_check
def _standard(x, eps, d: tl.constexpr, D: tl.constexpr):
    """Tokens [T, D] with mean 0 and variance 1, 0 beyond their d channels, and what they were multiplied by [T]."""
    off = tl.where(tl.arange(0, D)[None, :] < d, x - (tl.sum(x, axis=1) / d)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, axis=1) / d + eps)
    return off * scale[:, None], scale


@triton.jit
@no_type_check
def forward(x, weight, bias, y, rows, eps, d: tl.constexpr, D: tl.constexpr, T: tl.constexpr):
    tokens, channel = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    w = tl.load(weight + channel, mask=channel < d, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=channel < d, other=0.0).to(tl.float32)
    z, _ = _standard(load(x, tokens, d, tokens < rows, d, D).to(tl.float32), eps, d, D)
    store(y, z * w[None, :] + b[None, :], tokens, d, tokens < rows, d, D)


@triton.jit
@no_type_check
def backward(dy, x, weight, dx, sums, rows, share, eps, d: tl.constexpr, D: tl.constexpr, T: tl.constexpr):
    first, channel = tl.program_id(0) * share, tl.arange(0, D)
    w = tl.load(weight + channel, mask=channel < d, other=0.0).to(tl.float32)
    dw, db = tl.zeros([T, D], tl.float32), tl.zeros([T, D], tl.float32)
    for start in range(first, tl.minimum(first + share, rows), T):
        tokens = start + tl.arange(0, T)
        z, scale = _standard(load(x, tokens, d, tokens < rows, d, D).to(tl.float32), eps, d, D)
        arrived = load(dy, tokens, d, tokens < rows, d, D).to(tl.float32)
        dw, db = dw + arrived * z, db + arrived
        g = arrived * w[None, :]
        along = tl.sum(g * z, axis=1) / d
        g = (g - (tl.sum(g, axis=1) / d)[:, None] - z * along[:, None]) * scale[:, None]
        store(dx, g, tokens, d, tokens < rows, d, D)
    sums += tl.program_id(0).to(tl.int64) * (2 * d) + channel
    tl.store(sums, tl.sum(dw, axis=0), mask=channel < d)
    tl.store(sums + d, tl.sum(db, axis=0), mask=channel < d)
