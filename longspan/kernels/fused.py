"""Torch's fused kernel of exact attention, called by its own name: the usual door offers neither of

    in_rows    packed rows of different lengths, each a sequence of its own
    in_band    keys from `left` places before a query to `right` places after it; tiles without any are skipped

For half precision on a GPU and heads of at most 256 channels, a multiple of 8. Every query must see a key.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.packing import Layout

Band = tuple[int, int]  # to the left, to the right


def fits(q: Float[Tensor, "*rows c"], v: Float[Tensor, "*more e"]) -> bool:
    """Whether the kernel takes these, whatever the order of their axes but the last."""
    half = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == v.dtype
    widths = q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return q.device.type == "cuda" and half and widths


def is_counted() -> bool:
    """Whether somebody follows every operation: he would take a band for all pairs, and must see another path."""
    return not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0


def in_rows(
    q: Float[Tensor, "queries h c"],
    k: Float[Tensor, "t h c"],
    v: Float[Tensor, "t h c"],
    layout: Layout,
    *,
    causal: bool = False,
    band: Band | None = None,
    queries: tuple[Int[Tensor, " rows_plus_1"], int] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "queries h c"]:
    """Each row by itself; `queries` are cu_seqlens and max_seqlen of queries that are not the keys."""
    cu_seqlens, max_seqlen = queries or (layout.cu_seqlens, layout.max_seqlen)
    left, right = band or (None, None)
    rows, most = (cu_seqlens, layout.cu_seqlens), (max_seqlen, layout.max_seqlen)
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *rows, *most, dropout, causal, False, window_size_left=left, window_size_right=right
    )[0]


def in_band(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    *,
    left: int,
    right: int,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n c"]:
    n = q.shape[2]
    q, k, v = (rearrange(u, "b h n c -> b n h c") for u in (q, k, v))
    y = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, n, n, dropout, False, False, window_size_left=left, window_size_right=right
    )[0]
    return rearrange(y, "b n h c -> b h n c")
