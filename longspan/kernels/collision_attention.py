"""Attention whose weights are the chance that random hyperplanes do not separate a pair: u = w v, which YOSO divides by
its length.

    u_i = sum_j w_ij v_j      w_ij = (1 - arccos(q_i . k_j) / pi)^bits      when causal over j <= i
    dw / dx := (bits / 2) w  for x = q . k, a bound of the derivative, which has none itself

for unit vectors q and k. Weights are computed for some queries at a time, and recomputed in the backward pass, so that
memory is linear in the length. One operator for torch.compile, whatever the length. Deterministic.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.operator import differentiate, operator
from longspan.kernels.query_blocks import count_pairs, query_blocks

QUERIES = 256  # whose weights are computed at a time


def collision_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    bits: int,
    *,
    causal: bool = False,
) -> Float[Tensor, "b h n e"]:
    """u as above, in the precision of its inputs."""
    return _attend(q, k, v, bits, causal)


def collision(cosine: Float[Tensor, "*b n m"], bits: int) -> Float[Tensor, "*b n m"]:
    """w, written over the cosine, which is clamped to [-1, 1]: rounding beyond that would give NaN."""
    return cosine.clamp_(-1, 1).acos_().div_(-torch.pi).add_(1).pow_(bits)


def attend(q: Tensor, k: Tensor, v: Tensor, bits: int, causal: bool) -> Tensor:
    u = v.new_empty(*q.shape[:3], v.shape[3])
    for some, seen in query_blocks(q.shape[2], k.shape[2], QUERIES, causal=causal):
        u[:, :, some] = _weights(q, k, bits, causal, some, seen) @ v[:, :, :seen]
    return u


def gradients(du: Tensor, q: Tensor, k: Tensor, v: Tensor, bits: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv."""
    dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
    for some, seen in query_blocks(q.shape[2], k.shape[2], QUERIES, causal=causal):
        w = _weights(q, k, bits, causal, some, seen)
        dv[:, :, :seen] += w.mT @ du[:, :, some]
        dx = (du[:, :, some] @ v[:, :, :seen].mT).mul_(w).mul_(bits / 2)
        dq[:, :, some] = dx @ k[:, :, :seen]
        dk[:, :, :seen] += dx.mT @ q[:, :, some]
    return dq, dk, dv


def _weights(q: Tensor, k: Tensor, bits: int, causal: bool, some: slice, seen: int) -> Tensor:
    w = collision(q[:, :, some] @ k[:, :, :seen].mT, bits)
    return w.tril_(some.start) if causal else w


def _flops(q: tuple[int, ...], k: tuple[int, ...], causal: bool, widths: int) -> int:
    """Products of `widths` channels, for all pairs whose weights are computed."""
    return 2 * math.prod(q[:2]) * count_pairs(q[2], k[2], QUERIES, causal=causal) * widths


_attend = operator(
    "collision_attention",
    fake=lambda q, k, v, bits, causal: v.new_empty(*q.shape[:3], v.shape[3]),
    flops=lambda q, k, v, bits, causal: _flops(q, k, causal, q[3] + v[3]),
)(attend)
differentiate(
    _attend,
    operator(
        "collision_attention_backward",
        fake=lambda du, q, k, v, bits, causal: tuple(x.new_empty(x.shape) for x in (q, k, v)),
        flops=lambda du, q, k, v, bits, causal: _flops(q, k, causal, 3 * q[3] + 2 * v[3]),
    )(gradients),
)
