"""Attention between channels by the tokens so far: their normalised covariance under a softmax mixes each value.

    G_t = sum_{s <= t} q_s k_s^T      A_t = softmax_b(temperature G_t,ab / (|q_a|_t |k_b|_t))      y_t = A_t v_t

with |q_a|_t the norm of channel a of all queries up to t. A chunk of tokens is taken at a time, whose covariances are
written out and made anew in the backward pass: time O(n c^2), memory O(n c + (n / C + C) c^2) for chunks of C tokens.
A token that is all 0 changes nothing. In float32 or better.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 64  # tokens, and fewer where heads are wide:
WRITTEN = 2**18  # numbers of the covariances of one head that are written out at a time, so that they stay in a cache
SMALLEST = 1e-12  # of a norm, as in torch.nn.functional.normalize

Sums = tuple[Float[Tensor, "b h c c"], Float[Tensor, "b h c"], Float[Tensor, "b h c"]]  # of q k^T, q^2 and k^2


def running_covariance(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t c"],
    temperature: Float[Tensor, "h 1 1"],
    sums: Sums | None = None,
) -> tuple[Float[Tensor, "b h t c"], Sums]:
    """The output, and the sums after all tokens."""
    b, h, length, c = q.shape
    state: Any = sums or (q.new_zeros(b, h, c, c), q.new_zeros(b, h, c), q.new_zeros(b, h, c))
    if length == 0:
        return v, state
    y, chunk = [], min(CHUNK, max(4, WRITTEN // (c * c)))
    for tokens in zip(*(x.split(chunk, dim=2) for x in (q, k, v)), strict=True):
        found: Any = checkpoint(_chunk, *tokens, temperature, *state, use_reentrant=False, preserve_rng_state=False)
        y.append(found[0])
        state = found[1:]
    return torch.cat(y, dim=2), state


def channel_weights(
    covariance: Float[Tensor, "*b c c"],
    square_q: Float[Tensor, "*b c"],
    square_k: Float[Tensor, "*b c"],
    temperature: Float[Tensor, "*h 1 1"],
) -> Float[Tensor, "*b c c"]:
    """A for each covariance."""
    norm_q, norm_k = (x.clamp(min=SMALLEST**2).sqrt() for x in (square_q, square_k))
    return (temperature * (covariance / norm_q[..., :, None] / norm_k[..., None, :])).softmax(dim=-1)


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, covariance: Tensor, square_q: Tensor, square_k: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_q, of_k = square_q[:, :, None] + q.square().cumsum(dim=2), square_k[:, :, None] + k.square().cumsum(dim=2)
    each = covariance[:, :, None] + (q[..., :, None] * k[..., None, :]).cumsum(dim=2)
    weights = channel_weights(each, of_q, of_k, temperature[:, None])
    return (weights @ v[..., None])[..., 0], covariance + q.mT @ k, of_q[:, :, -1], of_k[:, :, -1]
