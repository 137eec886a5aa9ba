"""Exact attention over the keys each query may see; a query that may see none gets 0, and no NaN on the way back."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def masked_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, "#b #h #n m"],
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n e"]:
    """softmax(q k^T / sqrt(c)) v over the visible keys, by torch's fused kernels.

    Kernels disagree about rows with nothing to see, in value and in gradient. Such a row is shown everything, which is
    finite, and then erased, so that 0 goes out and 0 comes back.
    """
    blind = ~visible.any(dim=-1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible | blind, dropout_p=dropout).masked_fill(blind, 0)
