"""Causal linear attention by chunks: dense inside a chunk, one carried state between chunks.

    y_t = sum_{s <= t, same chunk} (q_t . k_s) exp(G_t - G_s) v_s  +  exp(G_t - G_start) q_t S

Time O(n (C + r) e), memory O(n (C + r + e) + (n / C) r e) for chunks of C tokens: no state per token is ever stored.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.chunk_states import before, fading_sum


def causal_linear(
    q: Float[Tensor, "b h t r"],
    k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    decay: Float[Tensor, "b h t"] | None,
) -> Float[Tensor, "b h t e"]:
    length = q.shape[2]
    if length == 0:
        return v
    chunk = chunk_length(q.shape[3])
    chunk = chunk if chunk < length else length  # min() would stay a formula in a graph compiled for any length
    chunks = -(-length // chunk)
    fill = chunks * chunk - length
    q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (chunks, chunk)) for x in (q, k, v))
    scores = (q @ k.mT).tril()
    if decay is None:
        y, state = scores @ v, fading_sum(k.mT @ v, None)
        y = y + q @ before(state)
    else:
        g = F.pad(decay.to(q.dtype), (0, fill)).unflatten(2, (chunks, chunk))
        between, since_start = sums_between(g)
        to_end = between[..., -1, :, None].exp()  # how much of each key is left at the end of its chunk
        state = fading_sum((k * to_end).mT @ v, since_start[..., -1:])
        y = (scores * between.exp()) @ v + since_start[..., None].exp() * (q @ before(state))
    return rearrange(y, "b h g c e -> b h (g c) e")[:, :, :length]


def chunk_length(features: int) -> int:
    """Long enough that writing states costs no more than reading tokens, short enough that scores stay small."""
    return 64 if features <= 64 else 128


def sums_between(g: Float[Tensor, "b h g c"]) -> tuple[Float[Tensor, "b h g c c"], Float[Tensor, "b h g c"]]:
    """G_t - G_s for all s <= t of a chunk (-inf above the diagonal), and G_t counted from the start of the chunk.

    Each entry sums its own terms: subtracting two long cumulative sums would lose every digit after a large jump.
    """
    size = g.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=g.device).tril(-1)  # t > s
    terms = g[..., :, None].expand(*g.shape, size).masked_fill(~later, 0)
    return terms.cumsum(dim=-2).masked_fill(later.mT, -torch.inf), g.cumsum(dim=-1)
