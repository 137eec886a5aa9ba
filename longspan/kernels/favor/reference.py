"""Attention by positive random features, written out: the law. Its causal sums are those of `causal_linear`."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.causal_linear import causal_linear
from longspan.kernels.feature_attention import with_ones
from longspan.kernels.precision import at_least_single


def favor(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    projection: Float[Tensor, "r c"],
    key_mask: Bool[Tensor, "b m"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    log_q, log_k = log_features(q, projection), hide(log_features(k, projection), key_mask)
    if causal:  # the pair (t, s) is weighted by the levels a_s of the key and m_t of all keys so far: exp(a_s - m_t)
        (phi_q, _), (phi_k, a) = relative(log_q), relative(log_k)
        m = a.cummax(dim=2).values
        decay = F.pad(m[:, :, :-1] - m[:, :, 1:], (1, 0))
        y = causal_linear(phi_q, phi_k * (a - m).exp()[..., None], with_ones(v), decay=decay)
    else:
        phi_k, largest = common(log_k)
        y = relative(log_q + largest[:, :, None])[0] @ (phi_k.mT @ with_ones(v))
    return normalised(y).to(v.dtype)


def log_features(x: Float[Tensor, "b h *n c"], projection: Float[Tensor, "r c"]) -> Float[Tensor, "b h *n r"]:
    """The logarithm of phi."""
    x = at_least_single(x) / x.shape[-1] ** 0.25
    return x @ projection.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2


def common(logs: Float[Tensor, "b h m r"]) -> tuple[Float[Tensor, "b h m r"], Float[Tensor, "b h r"]]:
    """Features divided by their largest value over all tokens, which carries no gradient, and its logarithm."""
    largest = F.pad(logs.detach(), (0, 0, 1, 0), value=least(logs.dtype)).amax(dim=2)
    return (logs - largest[:, :, None]).exp(), largest


def relative(logs: Float[Tensor, "b h n r"]) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h n"]]:
    """Features divided by the largest of their position, which carries no gradient, and its logarithm."""
    level = logs.detach().amax(dim=-1).clamp(min=least(logs.dtype))
    return (logs - level[..., None]).exp(), level


def hide(logs: Float[Tensor, "b h n r"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b h n r"]:
    return logs if mask is None else logs.masked_fill(~rearrange(mask, "b n -> b 1 n 1"), -torch.inf)


def normalised(y: Float[Tensor, "b h n e_plus_1"]) -> Float[Tensor, "b h n e"]:
    """Divide by the last column; where that vanishes (nothing to see, or too faint for a float) the row is 0."""
    return y[..., :-1] / y[..., -1:].clamp(min=faintest(y.dtype))


def least(dtype: torch.dtype) -> float:
    """The logarithm of the largest of no features at all, from which others can still be subtracted."""
    return torch.finfo(dtype).min / 4


def faintest(dtype: torch.dtype) -> float:
    """The smallest sum of weights that is divided by."""
    return torch.finfo(dtype).tiny ** 0.5
