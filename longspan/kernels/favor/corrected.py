"""Random features corrected: exact weights for the near keys of a query, features for all others, one normaliser.

    y_i = sum_j w_ij v_j / sum_j w_ij      w_ij = exp(q_i . k_j / sqrt(c)) if j is near i, else phi(q_i) . phi(k_j)

Queries come in tiles, each with a block of keys that holds all its near ones; keys outside that block enter only as
sums of features, in `favor`'s form: (sums, log_scale), each feature divided by its largest. Nothing is subtracted, so
that no weight is negative and no digits cancel. phi here includes its constant, so that near and far are comparable.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.favor.reference import log_of_nothing, scale_by_token, smallest_sum
from longspan.kernels.linear_attention.reference import divided, with_ones
from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import before, rescaled_sum


def corrected(
    q: Float[Tensor, "*b t c"],
    k: Float[Tensor, "*b s c"],
    v: Float[Tensor, "*b s e"],
    log_q: Float[Tensor, "*b t r"],
    log_k: Float[Tensor, "*b s r"],
    sums: Float[Tensor, "*b r e_plus_1"],
    log_scale: Float[Tensor, "*b r"],
    *,
    near: Bool[Tensor, "*any_near"],
    visible: Bool[Tensor, "*any_visible"],
    dropout: float = 0.0,
) -> Float[Tensor, "*b t e"]:
    """Tiles of queries attend to a block of keys each and to the summed keys; `dropout` acts only on exact weights.

    Of the keys in the block a query sees those that are `visible` to it [*b t s], through their features if they are
    not `near`.
    """
    q, k, log_q = at_least_single(q) / q.shape[-1] ** 0.5, at_least_single(k), log_q - math.log(log_q.shape[-1])
    (phi_q, top_q), (phi_k, top_k) = scale_by_token(log_q), scale_by_token(log_k)
    estimate, least = phi_q @ phi_k.mT, smallest_sum(q.dtype)
    estimate = estimate.clamp(min=least).log().masked_fill(estimate < least, -torch.inf)
    scores = torch.where(near, q @ k.mT, estimate + top_q[..., :, None] + top_k[..., None, :])
    scores = scores.masked_fill(~visible, -torch.inf)
    phi_q, far = scale_by_token(log_q + log_scale[..., None, :])
    top = torch.maximum(scores.detach().amax(dim=-1), far)[..., None]
    weights = (scores - top).exp()
    kept = torch.where(near, F.dropout(weights, dropout), weights) if dropout else weights
    y = torch.cat([kept @ at_least_single(v), weights.sum(dim=-1, keepdim=True)], dim=-1)
    return divided(y + (far[..., None] - top).exp() * (phi_q @ sums), floor=least)


def sums_before(
    log_k: Float[Tensor, "b h g s r"], v: Float[Tensor, "b h g s e"]
) -> tuple[Float[Tensor, "b h g r e_plus_1"], Float[Tensor, "b h g r"]]:
    """For each block of keys the sums over all blocks before it."""
    nothing = log_of_nothing(log_k.dtype)
    log_scale = log_k.detach().amax(dim=3).clamp(min=nothing).cummax(dim=2).values
    sums = rescaled_sum((log_k - log_scale[:, :, :, None]).exp().mT @ with_ones(v), log_scale)
    return before(sums), F.pad(log_scale[:, :, :-1], (0, 0, 1, 0), value=nothing)


def sums_after(
    log_k: Float[Tensor, "b h g s r"], v: Float[Tensor, "b h g s e"]
) -> tuple[Float[Tensor, "b h g r e_plus_1"], Float[Tensor, "b h g r"]]:
    """For each block of keys the sums over all blocks after it."""
    sums, log_scale = sums_before(log_k.flip(2), v.flip(2))
    return sums.flip(2), log_scale.flip(2)


def added(
    one: tuple[Float[Tensor, "*b r e_plus_1"], Float[Tensor, "*b r"]],
    other: tuple[Float[Tensor, "*b r e_plus_1"], Float[Tensor, "*b r"]],
) -> tuple[Float[Tensor, "*b r e_plus_1"], Float[Tensor, "*b r"]]:
    """The sums over the keys of both."""
    largest = torch.maximum(one[1], other[1])
    parts = (sums * (log_scale - largest).exp()[..., None] for sums, log_scale in (one, other))
    return sum(parts, start=torch.zeros_like(one[0])), largest
