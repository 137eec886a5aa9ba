"""The definition of block-sparse attention: which pairs of query i and key j are allowed, and the softmax over them.

Each rule gives a boolean matrix [n n], or one for each row and head of the batch; `attend` hides all other pairs.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.precision import at_least_single, without_autocast

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


def window(i: Tensor, j: Tensor, left: int, right: int, step: int = 1) -> Pairs:
    """The block of `step` tokens that holds i, `left` tokens before it and `right` after it."""
    start = i // step * step
    return (j >= start - left) & (j < start + step + right)


def regular(i: Tensor, j: Tensor, stride: int, near: bool) -> Pairs:
    allowed = (i - j) % stride == 0
    return allowed | window(i, j, stride - 1, stride - 1) if near else allowed


def in_block(i: Tensor, j: Tensor, bias: Float[Tensor, "h s t"], block: int, overlap: int) -> Float[Tensor, "h n n"]:
    """The bias of each pair from a table, by the place of the query in its block and of the key around there."""
    return bias[:, i % block, (j - i // block * block + overlap).clamp(0, bias.shape[2] - 1)]


def attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    allowed: Bool[Tensor, "*#b n n"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    extra: tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f e"], Bool[Tensor, "*#b n f"]] | None = None,
    bias: Float[Tensor, "*#b h n n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """The softmax over allowed pairs; `extra` are additional keys and values, and which queries see them.

    `bias` is added to the scores if there is no `extra`.
    """
    allowed = allowed.tril() if causal else allowed
    allowed = allowed if key_mask is None else allowed & key_mask[:, None, None, :]
    if extra is not None:
        k, v = (torch.cat([more, u], dim=2) for more, u in zip(extra[:2], (k, v), strict=True))
        common = torch.broadcast_shapes(allowed.shape[:-1], extra[2].shape[:-1])
        allowed = torch.cat([extra[2].expand(*common, -1), allowed.expand(*common, -1)], dim=-1)
    with without_autocast(q):
        scores = at_least_single(q) @ at_least_single(k).mT / q.shape[-1] ** 0.5
        scores = scores if bias is None else scores + bias
        weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return (weights.masked_fill(~allowed, 0) @ at_least_single(v)).to(v.dtype)
