"""The definition of block-sparse attention: which pairs of query i and key j are allowed, and the softmax over them.

Each rule gives a boolean matrix [n n], or one for each row and head of the batch; `attend` hides all other pairs.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pairs = Bool[Tensor, "*any n n"]


def positions_of(q: Float[Tensor, "b h n c"]) -> tuple[Int[Tensor, "n 1"], Int[Tensor, "1 n"]]:
    """i and j."""
    position = torch.arange(q.shape[2], device=q.device)
    return position[:, None], position[None, :]


def listed(i: Tensor, j: Tensor, key_blocks: Int[Tensor, "_b _h g s"], block: int, reach: int | None) -> Pairs:
    allowed = (key_blocks[:, :, i // block] == (j // block)[..., None]).any(dim=-1)
    return allowed if reach is None else allowed & window(i, j, reach, reach)


def named(j: Tensor, global_keys: Int[Tensor, "_b _h t"]) -> Bool[Tensor, "_b _h 1 n"]:
    return (global_keys[:, :, None, None, :] == j[..., None]).any(dim=-1)


def window(i: Tensor, j: Tensor, left: int, right: int) -> Pairs:
    return (j - i >= -left) & (j - i <= right)


def overlapping(i: Tensor, j: Tensor, block: int, overlap: int) -> Pairs:
    start = i // block * block
    return (j >= start - overlap) & (j < start + block + overlap)


def regular(i: Tensor, j: Tensor, stride: int, near: bool) -> Pairs:
    allowed = (i - j) % stride == 0
    return allowed | window(i, j, stride - 1, stride - 1) if near else allowed


def attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    allowed: Bool[Tensor, "*#b n n"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    if causal:
        allowed = allowed.tril()
    hidden = ~allowed if key_mask is None else ~(allowed & key_mask[:, None, None, :])
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0) @ v
