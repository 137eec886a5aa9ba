"""The law of strided attention: the whole matrix of scores, with all but the near and the regular keys hidden."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def strided(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    stride: int,
    near: bool = True,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    at = torch.arange(q.shape[2], device=q.device)
    lag = at[:, None] - at
    allowed = (lag.abs() < stride) | (lag % stride == 0) if near else lag % stride == 0
    if causal:
        allowed = allowed & (lag >= 0)
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~allowed, 0) @ v
