"""The law of block-sparse attention: the whole matrix of scores, with every pair that no rule allows hidden."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Int[Tensor, "#b #h g s"],
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    columns: Int[Tensor, "#b #h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    i, j = torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(q.shape[2], device=q.device)
    allowed = (lists[:, :, i // block] == (j // block)[:, None]).any(dim=-1)
    if reach is not None:
        allowed = allowed & ((i - j).abs() <= reach)
    if columns is not None:
        allowed = allowed | (columns[:, :, None, None, :] == j[:, None]).any(dim=-1)
    if causal:
        allowed = allowed & (j <= i)
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, torch.finfo(q.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~allowed, 0) @ v
