"""A chunk of T tokens as one step of a larger system, so that a recurrence becomes a few matrix products.

    y_i = W u_i + R z_i      z_{i+1} = M z_i + V u_i      u_i, y_i: the tokens of chunk i, and what is made of them

For x_t = A x_{t-1} + B u_t and y_t = C x_t + D u_t, z_i is the state before the chunk begins, and

    W_ts = C A^(t-s) B, and D more where t = s      V_s = A^(T-1-s) B      R_t = C A^(t+1)      M = A^T

W is 0 for s > t. A second C, which sees the later tokens, fills that half with C A^(s-t-1) B; its state goes from right
to left, with V_s = A^s B and R_t = C A^(T-1-t). States are real numbers: of a complex one, its two parts.
"""

from typing import NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Complex, Float, Shaped
from torch import Tensor

LENGTH = 128  # tokens: about as many as a state has numbers, since W takes T products a token, and V and R take S each


class Chunk(NamedTuple):
    """One matrix pair for each channel; `across` is complex where states do not mix."""

    read: Float[Tensor, "d ct t_plus_s"]  # W beside R
    write: Float[Tensor, "d t s"]  # V, transposed
    across: Float[Tensor, "d k k"] | Complex[Tensor, "d n"]  # M, the same in both directions


def lift(
    ahead: Float[Tensor, "d t k"],
    c: Float[Tensor, "d cg k"],
    reads: Float[Tensor, "d cg t k"],
    skip: Float[Tensor, "c d"],
    across: Shaped[Tensor, "d *k"],
    dtype: torch.dtype,
) -> Chunk:
    """From A^t B, C and, for each t, C A^(t+1), or C A^t for the second half of the channels where that looks back.

    W, V and R are multiplied in `dtype`. M is not rounded: its powers decide what is remembered.
    """
    channels = len(skip)
    taps = einsum(c.to(ahead.dtype), ahead, "d c k, d t k -> d c t")
    forth, back = taps[:, :channels], taps[:, channels:]
    now = forth[..., :1] + rearrange(skip, "c d -> d c 1")
    later = back[..., :-1] if back.shape[1] else torch.zeros_like(forth[..., 1:])
    line = torch.cat([forth[..., 1:].flip(-1), now, later, torch.zeros_like(now)], dim=-1).to(dtype)  # [d c 2t]
    maps = [_shifted(line)]
    ahead, reads = ahead.to(dtype), reads.to(dtype)
    writes = [ahead.flip(1)]
    maps.append(reads[:, :channels])
    if back.shape[1]:
        writes.append(ahead)
        maps.append(reads[:, channels:].flip(2))
    return Chunk(rearrange(torch.cat(maps, dim=-1), "d c t s -> d (c t) s"), torch.cat(writes, dim=-1), across)


def as_pairs(z: Complex[Tensor, "*axes n"]) -> Float[Tensor, "*axes two_n"]:
    """Complex states as real ones, part beside part."""
    return torch.view_as_real(z).flatten(-2)


def as_reading(c: Complex[Tensor, "*axes n"]) -> Float[Tensor, "*axes two_n"]:
    """What states in pairs are multiplied by to give Re sum_n c_n z_n."""
    return as_pairs(c.conj().resolve_conj())


def _shifted(line: Float[Tensor, "d c two_t"]) -> Float[Tensor, "d c t t"]:
    """Row t has line_(T-1+s-t) at place s: written one below another, and read in rows that are shorter by one."""
    length = line.shape[-1] // 2
    rows = line[:, :, None].expand(-1, -1, length, -1).flatten(2)[..., : length * (2 * length - 1)]
    return rows.unflatten(-1, (length, 2 * length - 1))[..., length - 1 :]
