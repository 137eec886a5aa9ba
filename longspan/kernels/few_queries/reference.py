"""A few queries over many keys, with all weights at once: the law. Keys come in pieces, which keep a GPU busy."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.tall_skinny import in_pieces


def few_queries(
    q: Float[Tensor, "b h r c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    key_mask: Bool[Tensor, "b m"] | None,
    half: float,
) -> tuple[Float[Tensor, "b h r e"], Float[Tensor, "b h r"]]:
    k, v = at_least_single(k), at_least_single(v)
    if key_mask is not None:
        k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (k, v))
    k, v = in_pieces(k), in_pieces(v)
    scores = q[:, :, None] @ k.mT  # [b h g r s]
    if half:
        scores = scores - half * k.square().sum(dim=-1)[..., None, :]
    hidden = None if key_mask is None else ~in_pieces(key_mask[:, None])[..., None, :]
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    largest = scores.detach().amax(dim=(2, 4), keepdim=True)
    weights = (scores - largest).exp()
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0)
    total = weights.sum(dim=(2, 4))
    seen = total > 0
    total = torch.where(seen, total, 1)
    level = torch.where(seen, total.log() + largest[:, :, 0, :, 0], 0)
    return (weights @ v).sum(dim=2) / total[..., None], level
