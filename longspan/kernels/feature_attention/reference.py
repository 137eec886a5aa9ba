"""Attention by features, written out: the law. Its causal sums are those of `causal_linear`, which has a law itself."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.causal_linear import causal_linear
from longspan.kernels.precision import at_least_single


def feature_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    key_mask: Bool[Tensor, "b m"] | None,
    query_angles: Float[Tensor, "b n"] | None,
    key_angles: Float[Tensor, "b m"] | None,
    feature: str,
    causal: bool,
    eps: float,
    floor: float,
) -> Float[Tensor, "b h n e"]:
    phi_q, phi_k = features(q, feature, query_angles), features(k, feature, key_angles, key_mask)
    values = with_ones(v)
    y = causal_linear(phi_q, phi_k, values) if causal else phi_q @ (phi_k.mT @ values)
    return (y[..., :-1] / (y[..., -1:] + eps).clamp(min=floor)).to(v.dtype)


def features(
    x: Float[Tensor, "b h *n c"],
    feature: str,
    angles: Float[Tensor, "b n"] | None = None,
    mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h *n r"]:
    """phi(x) in float32 or better; a hidden key gets 0, so that it adds nothing to any sum."""
    x = at_least_single(x)
    if feature == "elu":
        x = F.elu(x.contiguous()) + 1  # elu and relu keep strides that a compiled graph does not expect
    elif feature == "cosine":
        assert angles is not None
        x, angle = F.relu(x.contiguous()), rearrange(angles, "b n -> b 1 n 1")
        x = torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)
    return x if mask is None else x.masked_fill(~rearrange(mask, "b n -> b 1 n 1"), 0)


def with_ones(v: Float[Tensor, "*n e"]) -> Float[Tensor, "*n e_plus_1"]:
    """Values with a column of ones, whose weighted sum is the denominator."""
    v = at_least_single(v)
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
