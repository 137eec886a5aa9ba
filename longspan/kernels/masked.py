"""Exact attention under a mask: a query that sees no key gives 0 and has zero gradients, never NaN.

`attend_once` takes the one query of a decoding step, `masked_weights` gives the matrix of weights. `lowered_attention`
is the convention of much released code: a hidden key is not removed, its score is lowered, so that a query that sees no
key spreads evenly over all.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels import landmark
from longspan.kernels.precision import at_least_single

LONG = 1024  # keys from which a row is split: below, a launch costs more than it saves


def masked_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, "#b #h #n m"],
    *,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "b h n e"]:
    """softmax(scale q k^T) v over the visible keys, by torch's fused kernels; the scale is 1 / sqrt(c) unless given.

    Kernels disagree about rows that see no key, in value and in gradient. Here such a row attends to everything, to
    stay finite, and is then set to 0. A key that no query sees is set to 0 too: torch 2.11 lets scores of 1e5 through a
    mask in half precision. And fused kernels refuse a mask whose keys are not contiguous.
    """
    blind = ~visible.any(dim=-1, keepdim=True)
    k = k.masked_fill(~visible.any(dim=(1, 2))[:, None, :, None], 0)
    mask = (visible | blind).contiguous()
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return y.masked_fill(blind, 0)


def biased_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    bias: Float[Tensor, "b h n m"],
    visible: Bool[Tensor, "#b 1 #n m"] | None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n e"]:
    """softmax(q k^T / sqrt(c) + bias) v over the visible keys, 0 for a query that sees none."""
    bias = bias.to(q.dtype)
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    blind = ~visible.any(dim=-1, keepdim=True)  # attends to everything, to stay finite, and is set to 0
    bias = bias.masked_fill(~(visible | blind), -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout).masked_fill(blind, 0)


def masked_weights(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    visible: Bool[Tensor, "*#b n m"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "b h n m"]:
    """The weights of `masked_attention`, computed in float32 or better."""
    scores = (q @ k.mT / _divisor(q, scale)).masked_fill(~visible, -torch.inf)
    p = torch.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32))
    return p.masked_fill(~visible, 0).to(q.dtype)  # also turns the NaN of an empty row into 0


def attend_once(
    q: Float[Tensor, "b h c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    visible: Bool[Tensor, " b #h m"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "b h e"]:
    """One query of each row and head over the visible keys.

    On a GPU long rows are split: torch's fused kernels leave a row with a mask to one program.
    """
    if k.shape[2] < LONG or not landmark.is_faster(q[:, :, None], k, v):
        return masked_attention(q[:, :, None], k, v, visible[:, :, None], scale=scale)[:, :, 0]
    b, h, _ = q.shape
    if visible.shape[1] > 1:  # heads that see different keys become rows of their own
        q, k, v, visible = (u.flatten(0, 1)[:, None] for u in (q, k, v, visible))
    y, _ = landmark.landmark_pool(at_least_single(q)[:, :, None] / _divisor(q, scale), k, v, key_mask=visible[:, 0])
    return y.reshape(b, h, -1).to(v.dtype)


def _divisor(q: Float[Tensor, "... c"], scale: float | None) -> float:
    return q.shape[-1] ** 0.5 if scale is None else 1 / scale


def lowered_attention(
    q: Float[Tensor, "*b n c"],
    k: Float[Tensor, "*b m c"],
    v: Float[Tensor, "*b m e"],
    visible: Bool[Tensor, "*#b #n m"],
    *,
    by: float = -1e10,
    dropout: float = 0.0,
) -> Float[Tensor, "*b n e"]:
    """softmax(q k^T / sqrt(c) + by [hidden]) v.

    Written out, because the backward of fused kernels starts from the log-sum-exp, which loses its digits beside 1e10:
    the gradients of a row that sees nothing would be too large by a factor of the number of its keys.
    """
    scores = (q @ k.mT / q.shape[-1] ** 0.5).to(torch.promote_types(q.dtype, torch.float32))
    p = torch.softmax(torch.where(visible, scores, scores + by), dim=-1)
    return F.dropout(p, dropout).to(v.dtype) @ v


def tile_heads_first(mask: Bool[Tensor, "b m"], heads: int) -> Bool[Tensor, "b h m"]:
    """A mask for each head, laid out heads first and read as if it were batch first: a bug of released code that gives
    head h of row b the mask of row (b heads + h) mod batch."""
    return mask.repeat(heads, 1).unflatten(0, (len(mask), heads))
