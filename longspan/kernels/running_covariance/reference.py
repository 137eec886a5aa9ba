"""Running covariance with torch operations: a chunk at a time is written out, and recomputed in the backward pass."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 64  # tokens, and fewer where heads are wide:
WRITTEN = 2**18  # elements of the covariances of one head that are written out at a time, to stay in a cache
SMALLEST = 1e-12  # of a norm, as in torch.nn.functional.normalize

Sums = tuple[Float[Tensor, "b h c c"], Float[Tensor, "b h c"], Float[Tensor, "b h c"]]  # of q k^T, q^2 and k^2


def forward(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t c"],
    temperature: Float[Tensor, "h 1 1"],
    sums: Sums,
) -> tuple[Float[Tensor, "b h t c"], Sums]:
    """The output, and the sums after all tokens, of which there is at least one."""
    state: Any = sums
    y, chunk = [], min(CHUNK, max(4, WRITTEN // q.shape[3] ** 2))
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
