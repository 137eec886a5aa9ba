"""Lopsided products: sums over a long row for a few rows of output, in plain products of pieces side by side.

    pooled               x^T y                            [m, r] and [m, c] into [r, c]
    pooled_alike         X^T y                            the same with one X for all rows, and perhaps for all heads
    over_few_keys        softmax(q k^T) v                 many queries, few keys
    fused_over_few_keys  softmax(q k^T / sqrt(c)) v       the same by torch's fused kernel

One product over all tokens has so few numbers to give that it keeps a corner of a GPU busy and leaves the rest idle;
fused attention likewise has one short side to share out on the way back. Cut into pieces of the long side, each product
is many, and torch goes the way back piece by piece too. A row whose length has no factor of two is one piece. Logits of
`over_few_keys` are q . k as given: scale the short side.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

PIECE = 256  # tokens at least
FUSED_PIECE = 1024  # of the fused kernel, which adds a gradient of all keys for each


def in_pieces(x: Shaped[Tensor, "b h m *c"], least: int = PIECE) -> Shaped[Tensor, "b h g s *c"]:
    """As many equal pieces as halving gives, without a copy."""
    pieces = 1
    while x.shape[2] // (2 * pieces) >= least and x.shape[2] % (2 * pieces) == 0:
        pieces *= 2
    return x.unflatten(2, (pieces, -1)) if x.shape[2] else x[:, :, None]


def pooled(x: Float[Tensor, "b h m r"], y: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h r c"]:
    """x^T y."""
    return (in_pieces(x).mT @ in_pieces(y)).sum(dim=2)


def pooled_alike(x: Float[Tensor, "*h m r"], y: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h r c"]:
    """X^T y for one X of all rows, of all heads or of each, in the type of y. Heads of which every token lies side by
    side are as good as one wide head."""
    x, (b, h) = x.mT.to(y.dtype), y.shape[:2]
    if x.ndim == 3:
        return x @ y
    if y.stride(1) > y.stride(2):
        return _each(x, y.flatten(0, 1)).unflatten(0, (b, h))
    return _each(x, y.transpose(1, 2).flatten(2)).unflatten(2, (h, -1)).transpose(1, 2)


def _each(x: Float[Tensor, "r m"], y: Float[Tensor, "g m c"]) -> Float[Tensor, "g r c"]:
    """Written as many products: for one product torch would copy all of y, and its gradient once more."""
    return torch.bmm(x.expand(len(y), -1, -1), y)


def over_few_keys(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    key_mask: Bool[Tensor, "b r"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """softmax(q k^T) v over the real keys, 0 without any."""
    scores = in_pieces(q) @ k[:, :, None].mT  # [b h g s r]
    if key_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        hidden = ~key_mask[:, None, None, None]
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(hidden, 0)
    return (weights @ v[:, :, None]).flatten(2, 3)


def fused_over_few_keys(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h r c"], v: Float[Tensor, "b h r e"], *, dropout: float = 0.0
) -> Float[Tensor, "b h n e"]:
    """softmax(q k^T / sqrt(c)) v, in pieces if there will be a way back, for which that is faster.

    Pieces of queries count as heads, or as rows if tokens lie outside of heads."""
    if not (torch.is_grad_enabled() and q.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    pieces = in_pieces(q, FUSED_PIECE)  # [b h g s c]
    g, outside = pieces.shape[2], q.stride(1) < q.stride(2)
    pieces = (pieces.transpose(1, 2) if outside else pieces).flatten(0, 1)
    axis = 1 if outside else 2
    k, v = (u.unsqueeze(axis).repeat_interleave(g, dim=axis).flatten(0, 1) for u in (k, v))
    y = F.scaled_dot_product_attention(pieces, k, v, dropout_p=dropout).unflatten(0, (len(q), -1))
    return (y.transpose(1, 2) if outside else y).flatten(2, 3)
