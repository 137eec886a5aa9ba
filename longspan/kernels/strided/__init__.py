"""Exact attention to the near keys and to every `stride`-th key, in one softmax.

Query i sees the real key j when |i - j| < stride or when stride divides i - j; when causal only if j <= i as well.
Written as a grid with `stride` columns, the near keys lie in the rows around a query's own and the regular ones in its
column, so that both sets of scores are dense: n (3 stride + n / stride) numbers. `reference.py` is the law.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.filling import fill_up
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.strided import reference

Impl = Literal["auto", "reference"]


def strided(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    stride: int,
    near: bool = True,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention over near and regular keys, or regular ones alone; a row that sees no real key gives 0."""
    if impl == "reference":
        return reference.strided(q, k, v, stride=stride, near=near, causal=causal, key_mask=key_mask)
    n = q.shape[2]
    stride = stride if stride < n else n  # min() would stay a formula in a graph compiled for any length
    missing = -n % stride
    real = q.new_ones(q.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
    real = rearrange(F.pad(real, (0, missing), value=False), "b (g s) -> b 1 g s", s=stride)
    q, k, v = (rearrange(fill_up(u, n + missing), "b h (g s) c -> b h g s c", s=stride) for u in (q, k, v))
    with without_autocast(q):
        q, k, v = (at_least_single(u) for u in (q / q.shape[-1] ** 0.5, k, v))
        in_rows = einsum(q, _rows_around(k, causal), "b h g s c, b h g t c -> b h g s t")
        in_column = einsum(q, k, "b h g s c, b h r s c -> b h g s r")
        hidden = ~torch.cat([_near(real, stride if near else 1, causal), _far(real, causal)], dim=-1)
        scores = torch.cat([in_rows, in_column], dim=-1).masked_fill(hidden, torch.finfo(q.dtype).min)
        p = F.dropout(torch.softmax(scores, dim=-1).masked_fill(hidden, 0), dropout)
        in_rows, in_column = p.split([in_rows.shape[-1], in_column.shape[-1]], dim=-1)
        y = einsum(in_rows, _rows_around(v, causal), "b h g s t, b h g t e -> b h g s e")
        y = y + einsum(in_column, v, "b h g s r, b h r s e -> b h g s e")
    return rearrange(y, "b h g s e -> b h (g s) e")[:, :, :n]


def _rows_around(x: Float[Tensor, "b h g s c"], causal: bool) -> Float[Tensor, "b h g t c"]:
    """Beside each row of the grid the row before it, and the one after it unless causal."""
    rows = F.pad(x, (0, 0, 0, 0, 1, 0 if causal else 1))
    g = x.shape[2]
    return torch.cat([rows[:, :, start : start + g] for start in range(2 if causal else 3)], dim=3)


def _near(real: Bool[Tensor, "b 1 g s"], distance: int, causal: bool) -> Bool[Tensor, "b 1 g s t"]:
    """The keys in the rows around that are nearer than `distance`."""
    stride = real.shape[-1]
    rows = _rows_around(real[..., None].float(), causal)[..., 0] > 0
    here = torch.arange(stride, device=real.device)[:, None]
    lag = torch.arange(-stride, rows.shape[-1] - stride, device=real.device) - here
    within = lag.abs() < distance
    within = within & (lag <= 0) if causal else within
    return rows[..., None, :] & within


def _far(real: Bool[Tensor, "b 1 g s"], causal: bool) -> Bool[Tensor, "b 1 g s r"]:
    """The column of a query without its own place, which is near."""
    row = torch.arange(real.shape[2], device=real.device)
    other = row < row[:, None] if causal else row != row[:, None]
    return rearrange(real, "b 1 r s -> b 1 1 s r") & other[:, None]
