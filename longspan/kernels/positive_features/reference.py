"""Positive random features, written out: the law."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single


def log_features(x: Float[Tensor, "b h *n c"], projection: Float[Tensor, "r c"]) -> Float[Tensor, "b h *n r"]:
    """The logarithm of phi, without the constant 1 / sqrt(r)."""
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


def least(dtype: torch.dtype) -> float:
    """The logarithm of the largest of no features at all, from which others can still be subtracted."""
    return torch.finfo(dtype).min / 4
