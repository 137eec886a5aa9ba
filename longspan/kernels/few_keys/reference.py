"""Many queries over a few keys, with all weights at once: the law. Queries come in pieces, which keep a GPU busy."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.tall_skinny import in_pieces

FLOOR = 1e-8  # of the second factor


def few_keys(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    shift: Float[Tensor, "b h r"] | None,
    center: Float[Tensor, "b h r c"] | None,
    base: Float[Tensor, "b h r"] | None,
    query_mask: Bool[Tensor, "b n"] | None,
    beta: float,
) -> Float[Tensor, "b h n e"]:
    given, q = q.dtype, at_least_single(q)
    q = q if query_mask is None else q.masked_fill(~query_mask[:, None, :, None], 0)
    q, hidden = in_pieces(q), None
    logits = q @ k[:, :, None].mT  # [b h g s r]
    if shift is not None:
        shift = rearrange(shift, "b h r -> b h 1 1 r")
        hidden = shift.isneginf()
        logits = logits + shift.masked_fill(hidden, 0)
    weights = _softmax(logits, hidden)
    if center is not None and base is not None:
        t = _softmax(q @ center[:, :, None].mT, hidden)
        weights = weights * (rearrange(base, "b h r -> b h 1 1 r") + beta * t).clamp(min=FLOOR)
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1)
    return (weights @ v[:, :, None]).flatten(2, 3).to(given)


def _softmax(
    logits: Float[Tensor, "b h g s r"], hidden: Bool[Tensor, "b h 1 1 r"] | None
) -> Float[Tensor, "b h g s r"]:
    """0 for what is hidden, also where all is."""
    if hidden is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1).masked_fill(hidden, 0)
