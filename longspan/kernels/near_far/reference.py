"""Near and far with the whole matrix of scores: the law."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.precision import at_least_single


def near_far(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    key_mask: Bool[Tensor, "b n"] | None,
    step: int,
    left: int,
    right: int,
    chunk: int,
    rank: int,
) -> Float[Tensor, "b h n c"]:
    place, far = torch.arange(q.shape[2], device=q.device), torch.arange(far_k.shape[2], device=q.device)
    block = (place // step * step)[:, None]
    near_seen = ((place >= block - left) & (place < block + step + right))[None, None]
    if key_mask is not None:
        near_seen = near_seen & key_mask[:, None, None]
    far_seen = far < (place // chunk * rank)[:, None] if chunk else (far >= 0).expand(len(place), -1)
    seen = torch.cat([far_seen.expand(*near_seen.shape[:2], -1, -1), near_seen], dim=-1)
    keys, values = (torch.cat([at_least_single(x) for x in pair], dim=2) for pair in ((far_k, k), (far_v, v)))
    scores = at_least_single(q) @ keys.mT / q.shape[-1] ** 0.5
    return (scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ values).to(v.dtype)
