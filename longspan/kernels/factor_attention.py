"""Attention with given scores: a table, or a product of two tables that is the same for every row of a batch.

    score_attention     y = softmax(R) v
    factor_attention    y = softmax(A B^T) v      A: a row of `rank` numbers for each query, B: one for each key

With A as queries and B as keys torch's fused kernel computes it without storing weights. That kernel wants queries,
keys and values of one width. A and B are far narrower, and the columns that pad them are put to use:

    precision   where v is of half precision A and B are split into what that holds and the rest, A = A1 + A2, and
                A B^T = (A1, A1, A2) (B1, B2, B1)^T but for A2 B2^T: about 2^-16 of it is lost instead of 2^-8
    padding     one more column: beside B 0 for real keys and -10,000 for padding, which then weighs nothing, beside A
                1, or 0 for a query that sees no real key; the fastest kernel takes no mask
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from longspan.kernels.precision import without_autocast

HIDDEN = -1e4  # which float16 can represent
WIDEST = 256  # of torch's flash kernel
FEW_ROWS = 4  # of a batch, on a CPU
FEW_WEIGHTS = 2**23  # in single precision on a GPU
MOST_WEIGHTS = 2**29  # that are kept


def is_faster(rows: Float[Tensor, "h n r"], v: Float[Tensor, "b h m e"], key_mask: Bool[Tensor, "b m"] | None) -> bool:
    """Whether the fused kernel is faster than computing all weights, once for all rows if none is padded.

    In half precision on a GPU it is; elsewhere if every row would need its own weights, if there are few rows (on a
    GPU: few weights), or if the weights would take too much memory; not for a single query. Float64 has no fused kernel
    on a GPU.
    """
    if rows.shape[1] == 1:
        return False
    on_gpu, weights = v.device.type == "cuda", rows.shape[0] * rows.shape[1] * v.shape[2]
    if on_gpu and v.dtype in (torch.bfloat16, torch.float16):
        return 3 * rows.shape[2] + 1 <= WIDEST
    if on_gpu and v.dtype == torch.float64:
        return False
    few = weights <= FEW_WEIGHTS if on_gpu else len(v) <= FEW_ROWS
    return few or len(v) == 1 or key_mask is not None or weights > MOST_WEIGHTS


def factor_attention(
    rows: Float[Tensor, "h n r"],
    columns: Float[Tensor, "h m r"],
    v: Float[Tensor, "b h m e"],
    key_mask: Bool[Tensor, "b m"] | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    impl: Literal["auto", "weights", "fused"] = "auto",
) -> Float[Tensor, "b h n e"]:
    """softmax(rows columns^T) v over the real keys (up to position i when causal: n = m); 0 if there is none.

    By weights that are computed once, or by torch's fused kernel if there is no dropout.
    """
    if dropout or impl == "weights" or (impl == "auto" and not is_faster(rows, v, key_mask)):
        with without_autocast(v):
            scores = (rows @ columns.mT)[None]
        return score_attention(scores, v, key_mask, causal=causal, dropout=dropout)
    a, b = _factors(rows, columns, v.dtype)
    seen = hidden = None
    if key_mask is not None:
        seen = key_mask.cumsum(dim=1) > 0 if causal else key_mask.any(dim=1, keepdim=True).expand(-1, a.shape[1])
        hidden = HIDDEN * ~key_mask
    c, e = a.shape[-1] + (key_mask is not None), v.shape[-1]
    if not (v.device.type == "cuda" and v.dtype == torch.float32):  # whose kernel takes keys narrower than values
        c = max(c, e)
    q, k = (_of_each_row(table, column, len(v), c) for table, column in ((a, seen), (b, hidden)))
    y = F.scaled_dot_product_attention(q, k, _filled(v, c), is_causal=causal, scale=1.0)[..., :e]
    return y if seen is None else y.masked_fill(~seen[:, None, :, None], 0)


def _factors(
    rows: Float[Tensor, "h n r"], columns: Float[Tensor, "h m r"], dtype: torch.dtype
) -> tuple[Float[Tensor, "h n c"], Float[Tensor, "h m c"]]:
    """Tables of this type with the same product. Gradients flow through the first parts, each of which is multiplied by
    both parts of the other table, so that nothing is counted twice."""
    a, b = rows.to(dtype), columns.to(dtype)
    if rows.element_size() <= a.element_size():
        return a, b
    a_rest, b_rest = (rows - a).detach().to(dtype), (columns - b).detach().to(dtype)
    return torch.cat([a, a, a_rest], dim=-1), torch.cat([b, b_rest, b], dim=-1)


def _of_each_row(
    table: Float[Tensor, "h n c"], column: Shaped[Tensor, "b n"] | None, batch: int, least: int
) -> Float[Tensor, "b h n w"]:
    """The table once for each row of a batch, with this column appended, laid out in memory as projected tokens are:
    not every kernel takes rows that share their memory (github.com/pytorch/pytorch/pull/175764)."""
    x = rearrange(table, "h n c -> 1 n h c").expand(batch, -1, -1, -1)
    if column is not None:
        x = torch.cat([x, column[:, :, None, None].to(x.dtype).expand(*x.shape[:3], 1)], dim=-1)
    return _filled(x, least).contiguous().transpose(1, 2)


def _filled(x: Float[Tensor, "*rows c"], least: int) -> Float[Tensor, "*rows w"]:
    """Padded with columns of zeros to a width of at least `least` and a multiple of 8, as kernels require."""
    width = -(-max(least, x.shape[-1]) // 8) * 8
    return F.pad(x, (0, width - x.shape[-1])) if width > x.shape[-1] else x


def score_attention(
    scores: Float[Tensor, "#b h n m"],
    v: Float[Tensor, "b h m e"],
    key_mask: Bool[Tensor, "b m"] | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n e"]:
    """softmax(scores) v over the real keys (up to position i when causal: n = m); 0 if there is none.

    Scores without a batch are exponentiated once for all rows, unless padding makes the rows differ.
    """
    i, j = (torch.arange(length, device=v.device) for length in scores.shape[2:])
    visible = j <= i[:, None] if causal else torch.ones_like(scores[0, 0], dtype=torch.bool)
    least = torch.finfo(scores.dtype).min
    if len(scores) == len(v) or key_mask is not None:
        visible = visible if key_mask is None else visible & key_mask[:, None, None, :]
        weights = scores.masked_fill(~visible, least).softmax(dim=-1).masked_fill(~visible, 0)
        return F.dropout(weights, dropout).to(v.dtype) @ v
    scores = scores[0].masked_fill(~visible, least)
    weights = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    with without_autocast(v):
        y = einsum(F.dropout(weights, dropout).to(v.dtype), v, "h n m, b h m e -> b h n e")
    return y / weights.sum(dim=-1, keepdim=True)
