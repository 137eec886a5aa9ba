"""Paired blocks laid side by side: the law."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single


def paired_blocks(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    other_k: Float[Tensor, "b h g j c"],
    other_v: Float[Tensor, "b h g j e"],
    key_mask: Bool[Tensor, "b n"] | None,
    other_mask: Bool[Tensor, "#b #h g j"] | None,
    begun: Bool[Tensor, "b n"] | None,
    block: int,
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    (b, h, n, _), (g, j) = q.shape, other_k.shape[2:4]
    missing = g * block - n
    queries, keys, values = (F.pad(at_least_single(x), (0, 0, 0, missing)).unflatten(2, (g, block)) for x in (q, k, v))
    everyone = torch.ones(b, n, dtype=torch.bool, device=q.device)
    real, begun = (
        F.pad(everyone if mask is None else mask, (0, missing)).unflatten(1, (g, block)) for mask in (key_mask, begun)
    )
    own = rearrange(real, "b g s -> b 1 g 1 s").expand(b, h, g, block, block)
    own = own.tril() if causal else own
    other = rearrange(begun, "b g i -> b 1 g i 1").expand(b, h, g, block, j)
    other = other if other_mask is None else other & other_mask[:, :, :, None]
    visible = torch.cat([other, own], dim=-1)
    keys, values = (torch.cat([at_least_single(x), u], dim=3) for x, u in ((other_k, keys), (other_v, values)))
    scores = queries @ keys.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~visible, 0)
    return (weights @ values).flatten(2, 3)[:, :, :n].to(v.dtype)
