"""The definition of block-sparse attention: the whole matrix of scores, with every pair that no rule allows hidden."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    key_blocks: Int[Tensor, "#b #h g s"],
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    global_keys: Int[Tensor, "#b #h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    i, j = _positions(q)
    allowed = (key_blocks[:, :, i // block] == (j // block)[..., None]).any(dim=-1)
    if reach is not None:
        allowed = allowed & ((i - j).abs() <= reach)
    if global_keys is not None:
        allowed = allowed | (global_keys[:, :, None, None, :] == j[..., None]).any(dim=-1)
    return _attend(q, k, v, allowed & (j <= i) if causal else allowed, key_mask)


def sliding_window(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    left: int,
    right: int,
    key_mask: Bool[Tensor, "b n"] | None = None,
    positions: Int[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    i, j = _positions(q) if positions is None else (positions[:, None, :, None], positions[:, None, None, :])
    return _attend(q, k, v, (j - i >= -left) & (j - i <= right), key_mask)


def overlapping_blocks(
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
    allowed = (j >= start - overlap) & (j < start + block + overlap)
    return _attend(q, k, v, allowed & (j <= i) if causal else allowed, key_mask)


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
    i, j = _positions(q)
    allowed = (i - j) % stride == 0
    if near:
        allowed = allowed | ((i - j).abs() < stride)
    return _attend(q, k, v, allowed & (j <= i) if causal else allowed, key_mask)


def _positions(q: Float[Tensor, "b h n c"]) -> tuple[Int[Tensor, "n 1"], Int[Tensor, "1 n"]]:
    position = torch.arange(q.shape[2], device=q.device)
    return position[:, None], position[None, :]


def _attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    allowed: Bool[Tensor, "*#b n n"],
    key_mask: Bool[Tensor, "b n"] | None,
) -> Float[Tensor, "b h n e"]:
    hidden = ~allowed if key_mask is None else ~(allowed & key_mask[:, None, None, :])
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0) @ v
