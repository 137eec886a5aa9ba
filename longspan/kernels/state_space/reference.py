"""State spaces one token after the other, each row alone; a convolution as a sum over all pairs of tokens."""

import torch
from einops import einsum
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single


def impulse_response(log_a: Complex[Tensor, "d n"], c: Complex[Tensor, "c d n"], length: int) -> Float[Tensor, "c d t"]:
    s, rows = torch.ones_like(log_a), []
    for _ in range(length):
        rows.append(2 * einsum(c, s, "c d n, d n -> c d").real)
        s = log_a.exp() * s
    return torch.stack(rows, dim=-1)


def last_state(
    log_a: Complex[Tensor, "d n"], u: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"]
) -> Complex[Tensor, "b d n"]:
    states = []
    for row, length in zip(u, lengths.tolist(), strict=True):
        s = torch.zeros_like(log_a)
        for u_t in row[:length]:
            s = log_a.exp() * s + u_t[:, None]
        states.append(s.to(torch.promote_types(u.dtype, torch.complex64)))
    return torch.stack(states)


def filter_tokens(
    x: Float[Tensor, "b n d"],
    kernel: Float[Tensor, "c d n"],
    reverse: Float[Tensor, "c d n"] | None,
    skip: Float[Tensor, "c d"],
    mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b n c_times_d"]:
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    rows = []
    for row, real in zip(at_least_single(x), mask, strict=True):
        u = row[real].mT
        past, future = kernel[..., : u.shape[-1]], None if reverse is None else reverse[..., : u.shape[-1]]
        y = long_convolution(u[None], past, future) + skip[..., None] * u
        rows.append(row.new_zeros(len(row), skip.numel()).index_copy(0, real.nonzero()[:, 0], y.flatten(0, 1).mT))
    return torch.stack(rows)


def long_convolution(
    u: Float[Tensor, "*u t"], kernel: Float[Tensor, "*k t"], reverse: Float[Tensor, "*k t"] | None = None
) -> Float[Tensor, "*y t"]:
    t = torch.arange(u.shape[-1], device=u.device)
    lag = t[:, None] - t
    weights = torch.where(lag >= 0, kernel[..., lag.clamp(min=0)], 0)
    if reverse is not None:
        weights = torch.where(lag >= 0, weights, reverse[..., (-lag - 1).clamp(min=0)])
    return einsum(weights, u, "... t s, ... s -> ... t")


def matrix_powers(
    a: Float[Tensor, "d k k"], rows: Float[Tensor, "d f k"], length: int
) -> tuple[Float[Tensor, "d f t k"], Float[Tensor, "d k k"]]:
    found, last = [rows], a
    for _ in range(length - 1):
        found.append(torch.cat([found[-1][:, :1] @ a.mT, found[-1][:, 1:] @ a], dim=1))
        last = last @ a
    return torch.stack(found, dim=2), last
