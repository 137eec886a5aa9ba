"""Lopsided products: sums over a long row for a few rows of output, in plain products of pieces side by side.

    pooled             x^T y                  [m, r] and [m, c] into [r, c]
    over_few_keys      softmax(q k^T) v       many queries, few keys

One product over all tokens has so few numbers to give that it keeps a corner of a GPU busy and leaves the rest idle;
fused attention likewise has one short side to share out, at the latest on the way back. Cut into pieces of the long
side, each product is many, and torch goes the way back piece by piece too. A row whose length has no factor of two
is one piece. Logits are q . k as given: scale the short side.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

PIECE = 256  # tokens at least


def in_pieces(x: Shaped[Tensor, "b h m *c"]) -> Shaped[Tensor, "b h g s *c"]:
    """As many equal pieces as halving gives, without a copy."""
    pieces = 1
    while x.shape[2] % (2 * pieces) == 0 and x.shape[2] // (2 * pieces) >= PIECE:
        pieces *= 2
    return x.unflatten(2, (pieces, -1)) if x.shape[2] else x[:, :, None]


def pooled(x: Float[Tensor, "b h m r"], y: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h r c"]:
    """x^T y."""
    return (in_pieces(x).mT @ in_pieces(y)).sum(dim=2)


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
