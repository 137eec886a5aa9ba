"""The definition of attention over diagonals, differentiable by torch; it keeps the score of every pair."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.kernels.precision import at_least_single


def diagonals(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    offsets: list[int],
    *,
    key_mask: Bool[Tensor, "b n"] | None = None,
    rows: Int[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n e"]:
    q, n = at_least_single(q) / q.shape[-1] ** 0.5, q.shape[2]
    real = q.new_ones(1, n, dtype=torch.bool) if key_mask is None else key_mask
    pairs = [(*span(o, n), o) for o in offsets]
    scores = [padded((q[:, :, i] * k[:, :, j]).sum(dim=-1), o) for i, j, o in pairs]
    seen = [padded(real[:, j] if rows is None else real[:, j] & (rows[:, i] == rows[:, j]), o) for i, j, o in pairs]
    hidden = ~torch.stack(seen, dim=-1)[:, None]
    p = torch.stack(scores, dim=-1).masked_fill(hidden, torch.finfo(q.dtype).min)
    p = F.dropout(torch.softmax(p, dim=-1).masked_fill(hidden, 0), dropout)
    y = q.new_zeros(*q.shape[:3], v.shape[-1])
    for (i, j, o), share in zip(pairs, p.unbind(dim=-1), strict=True):
        y = y + padded((share[:, :, i, None] * v[:, :, j]).mT, o).mT
    return y.to(v.dtype)


def span(offset: int, n: int) -> tuple[slice, slice]:
    """The queries that have a key at this offset, and these keys."""
    return slice(max(offset, 0), n + min(offset, 0)), slice(max(-offset, 0), n - max(offset, 0))


def padded(x: Shaped[Tensor, "... s"], offset: int) -> Shaped[Tensor, "... n"]:
    """One value for each query; 0 (False) for those at the edge whose key would lie outside."""
    return F.pad(x, (max(offset, 0), max(-offset, 0)))
