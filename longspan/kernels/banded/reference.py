"""The law of local attention: the whole matrix of scores, with everything but the neighbourhood hidden."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def banded(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    left: int,
    right: int,
    key_mask: Bool[Tensor, "b n"] | None = None,
    places: Int[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    i, j = _positions(q) if places is None else (places[:, None, :, None], places[:, None, None, :])
    return _dense(q, k, v, (j - i >= -left) & (j - i <= right), key_mask)


def blocked(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    block: int,
    overlap: int = 0,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    i, j = _positions(q)
    start = i // block * block
    near = (j >= start - overlap) & (j < start + block + overlap)
    return _dense(q, k, v, near & (j <= i) if causal else near, key_mask)


def _positions(q: Float[Tensor, "b h n c"]) -> tuple[Tensor, Tensor]:
    at = torch.arange(q.shape[2], device=q.device)
    return at[:, None], at[None, :]


def _dense(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    near: Bool[Tensor, "*#b n n"],
    key_mask: Bool[Tensor, "b n"] | None,
) -> Float[Tensor, "b h n e"]:
    hidden = ~near if key_mask is None else ~(near & key_mask[:, None, None, :])
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0) @ v
