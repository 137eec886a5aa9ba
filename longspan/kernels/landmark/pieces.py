"""Products of a long side with a short one, cut along the long side: in plain PyTorch.

One product over all tokens has so few outputs that it occupies a corner of a GPU, and the backward pass of fused
attention likewise parallelises over keys, of which there are few. Cut into pieces of the long side it becomes a batch
of products. A row whose length has no factor of two is one piece.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

PIECE = 256  # tokens at least
FUSED_PIECE = 1024  # of the fused kernel, which adds up a gradient of all keys for each


def in_pieces(x: Shaped[Tensor, "b h m *c"], least: int = PIECE) -> Shaped[Tensor, "b h g s *c"]:
    """As many equal pieces as halving gives, without a copy."""
    pieces = 1
    while x.shape[2] // (2 * pieces) >= least and x.shape[2] % (2 * pieces) == 0:
        pieces *= 2
    return x.unflatten(2, (pieces, -1)) if x.shape[2] else x[:, :, None]


def weighted_sums(
    weights: Float[Tensor, "b h m r"], x: Float[Tensor, "b h m c"], dtype: torch.dtype | None = None
) -> Float[Tensor, "b h r c"]:
    """weights^T x, the sum over pieces in `dtype` if given."""
    return (in_pieces(weights).mT @ in_pieces(x)).sum(dim=2, dtype=dtype)


def project_length(matrix: Float[Tensor, "*h m r"], x: Float[Tensor, "b h m c"]) -> Float[Tensor, "b h r c"]:
    """matrix^T x for one matrix for all rows, or one for each head, in the type of x."""
    matrix, (b, h) = matrix.mT.to(x.dtype), x.shape[:2]
    if matrix.ndim == 3:
        return matrix @ x
    # bmm with an expanded matrix: for one product torch would copy all of x, and its gradient once more
    if x.stride(1) > x.stride(2):
        return torch.bmm(matrix.expand(b * h, -1, -1), x.flatten(0, 1)).unflatten(0, (b, h))
    x = x.transpose(1, 2).flatten(2)  # heads that lie side by side in every token are as good as one wide head
    return torch.bmm(matrix.expand(b, -1, -1), x).unflatten(2, (h, -1)).transpose(1, 2)


def fused_attention(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h r c"], v: Float[Tensor, "b h r e"], *, dropout: float = 0.0
) -> Float[Tensor, "b h n e"]:
    """softmax(q k^T / sqrt(c)) v for a few keys by torch's fused kernel, in pieces if there will be a backward pass.

    Pieces of queries become heads, or batch rows if tokens lie outside of heads in memory.
    """
    if not (torch.is_grad_enabled() and q.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    pieces = in_pieces(q, FUSED_PIECE)  # [b h g s c]
    g, outside = pieces.shape[2], q.stride(1) < q.stride(2)
    pieces = (pieces.transpose(1, 2) if outside else pieces).flatten(0, 1)
    axis = 1 if outside else 2
    k, v = (u.unsqueeze(axis).repeat_interleave(g, dim=axis).flatten(0, 1) for u in (k, v))
    y = F.scaled_dot_product_attention(pieces, k, v, dropout_p=dropout).unflatten(0, (len(q), -1))
    return (y.transpose(1, 2) if outside else y).flatten(2, 3)
