"""Groups of queries, each with a copy of the keys it sees, for torch's fused kernels: on any device, with dropout."""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from longspan.kernels.launch import ceil
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import real_first
from longspan.kernels.pooling import running_mean
from longspan.kernels.running_sum import running_sum

Shown = tuple[Float[Tensor, "b h g _ c"], Float[Tensor, "b h g _ e"], Bool[Tensor, "_b _h _g _i _"] | None]


def in_blocks(x: Float[Tensor, "b h m c"], block: int) -> Float[Tensor, "b h g s c"]:
    """Consecutive blocks of a row, the last one padded with zeros."""
    blocks = ceil(x.shape[2], block)
    missing = blocks * block - x.shape[2]
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (blocks, block))


def real_in_blocks(
    mask: Bool[Tensor, "b m"] | None, x: Float[Tensor, "b h m c"], block: int
) -> Bool[Tensor, "_b g s"] | None:
    """Which places of the blocks of x hold a real token: one row for all without a mask, None where all places do."""
    m = x.shape[2]
    missing = ceil(m, block) * block - m
    if mask is None and not missing:
        return None
    mask = torch.ones(1, m, dtype=torch.bool, device=x.device) if mask is None else mask
    return F.pad(mask, (0, missing), value=False).unflatten(1, (ceil(m, block), block))


def block_sums(x: Float[Tensor, "b h g s c"]) -> Float[Tensor, "b h g c"]:
    return x.sum(dim=3, dtype=torch.promote_types(x.dtype, torch.float32))


def block_means(x: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g c"]:
    """The mean of the real tokens of each block; padded tokens of x must be 0."""
    count = x.shape[3] if real is None else rearrange(real.sum(dim=2).clamp(min=1), "b g -> b 1 g 1")
    return block_sums(x) / count


def means_up_to_blocks(x: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g c"]:
    """The mean of all real tokens up to the first of each block; padded tokens of x must be 0."""
    earlier = running_sum(F.pad(block_sums(x[:, :, :-1]), (0, 0, 1, 0)))
    if real is None:
        count = torch.arange(1, x.shape[2] * x.shape[3] + 1, x.shape[3], device=x.device)[:, None]
    else:
        count = F.pad(real[:, :-1].sum(dim=2).cumsum(dim=1), (1, 0)) + real[..., 0]
        count = rearrange(count.clamp(min=1), "b g -> b 1 g 1")
    return (earlier + x[:, :, :, 0]) / count


def block_scores(
    q: Float[Tensor, "b h g s c"], k: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None, *, causal: bool
) -> Float[Tensor, "b h u v"]:
    """The mean query of block u times the mean key of block v over sqrt(c).

    Causally the mean of all queries up to the first of u, times the running means of the keys summed over v.
    """
    padded = None if real is None else ~rearrange(real, "b g s -> b 1 g s 1")
    q = q if padded is None else q.masked_fill(padded, 0)
    if not causal:
        return block_means(q, real) @ block_means(k, real).mT / k.shape[-1] ** 0.5
    mask = None if real is None else real.flatten(1).expand(len(k), -1)
    means = running_mean(k.flatten(2, 3), mask=mask).unflatten(2, k.shape[2:4])
    keys = block_sums(means if padded is None else means.masked_fill(padded, 0))
    return means_up_to_blocks(q, real) @ keys.mT / k.shape[-1] ** 0.5


def first_blocks(
    x: Shaped[Tensor, "_b _h u r v"], real: Bool[Tensor, "#b u s"] | None, count: int
) -> Shaped[Tensor, "_b _h _ r v"]:
    """Those of the first `count` blocks that hold a real token."""
    if real is None:
        return x[:, :, :count]
    first = real_first(real.any(dim=2))[:, None, :count, None, None]
    # not take_along_dim, whose sizes a graph compiled for any length would take for its own
    return x.gather(2, first.expand(*x.shape[:2], -1, *x.shape[3:]))


def mix_blocks(
    matrix: Float[Tensor, "b h u r v"], x: Float[Tensor, "b h _ s c"], null: Float[Tensor, "h 1 c"] | None, nulls: int
) -> Float[Tensor, "b h u r s c"]:
    """Sums of blocks weighted by each row of a matrix, whose first `nulls` columns stand for blocks of `null`."""
    mixed = matrix[..., nulls:].flatten(2, 3).to(x.dtype) @ x.flatten(3)
    mixed = mixed.unflatten(3, x.shape[3:]).unflatten(2, matrix.shape[2:4])
    if null is None:
        return mixed
    share = matrix[..., :nulls].sum(dim=-1)[..., None, None]
    return mixed + (share * rearrange(null, "h 1 c -> h 1 1 1 c")).to(mixed.dtype)


def mixed_mask(
    support: Bool[Tensor, "#b #h u r v"], real: Bool[Tensor, "#b _ s"] | None, nulls: int, size: int
) -> Bool[Tensor, "_b _h u r s"]:
    """Which places of mixed blocks hold a real token of any block in `support`; null blocks are real throughout."""
    if real is None:
        real = support.new_ones(1, support.shape[4] - nulls, size)
    real = F.pad(real, (0, 0, nulls, 0), value=True)
    return einsum(support.float(), real.float(), "b h u r v, b v s -> b h u r s") > 0


def attend_groups(
    q: Float[Tensor, "b h g i c"],
    shown: list[Shown],
    *,
    separate: bool = False,
    all_see: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h g i e"]:
    """Each group of queries attends to its sets of keys in one softmax or, if `separate`, sums one softmax per set.

    `all_see` promises that every query sees a key.
    """
    if separate:
        return torch.stack([attend_groups(q, [part], dropout=dropout) for part in shown]).sum(dim=0)
    k, v = (
        parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)
        for parts in ([x[0] for x in shown], [x[1] for x in shown])
    )
    visible, (b, h) = None, q.shape[:2]
    if any(mask is not None for *_, mask in shown):
        masks = [k.new_ones(1, 1, 1, 1, x.shape[3], dtype=torch.bool) if mask is None else mask for x, _, mask in shown]
        common = torch.broadcast_shapes(*(mask.shape[:4] for mask in masks))
        visible = torch.cat([mask.expand(*common, -1) for mask in masks], dim=-1)
        visible = (visible if common[:2] == (1, 1) else visible.expand(b, h, -1, -1, -1)).flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # groups become the heads, as they lie in memory already
    if visible is None or all_see:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)
    else:
        y = masked_attention(q, k, v, visible, dropout=dropout)
    return y.unflatten(0, (b, h))
