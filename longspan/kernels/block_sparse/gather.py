"""Block-sparse attention in PyTorch: each block of queries gets a copy of the keys it sees, on any device.

Work and memory grow with the number of keys that a block sees, never with n^2.
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.launch import ceil
from longspan.kernels.masked import biased_attention, masked_attention
from longspan.kernels.packing import fill_up
from longspan.kernels.precision import at_least_single, without_autocast

TILE = 64  # queries that share a copy of their keys: a tile of the fused kernels


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    key_blocks: Int[Tensor, "#b #h g s"],
    *,
    block: int,
    reach: int | None,
    causal: bool,
    global_keys: Int[Tensor, "#b #h t"] | None,
    key_mask: Bool[Tensor, "b n"] | None,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    n, g = q.shape[2], key_blocks.shape[2]
    key_blocks = without_repeats(key_blocks)
    real = q.new_ones(q.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
    i = rearrange(torch.arange(g * block, device=q.device), "(g s) -> 1 g 1 s 1", g=g)

    within = torch.arange(block, device=q.device)
    j = rearrange(key_blocks[..., None] * block + within, "b h g s block -> b g h 1 (s block)")
    visible = _look_up(real, j)
    visible = visible if reach is None else visible & _within(reach, i, j)
    visible = visible & (j <= i) if causal else visible
    k_seen, v_seen = gather_blocks(k, key_blocks, block), gather_blocks(v, key_blocks, block)
    if global_keys is not None:
        k_seen, v_seen = (_append(seen, u, global_keys) for seen, u in ((k_seen, k), (v_seen, v)))
        j = rearrange(global_keys, "b h t -> b 1 h 1 t")
        listed = (rearrange(key_blocks, "b h g s -> b g h 1 1 s") == (j // block)[..., None]).any(dim=-1)
        listed = listed if reach is None else listed & _within(reach, i, j)
        beside = _look_up(real, j) & ~listed  # keys already visible through the blocks are counted once
        beside = beside & (j <= i) if causal else beside
        heads, rows = (max(visible.shape[axis], beside.shape[axis]) for axis in (2, 3))
        visible = torch.cat([part.expand(-1, -1, heads, rows, -1) for part in (visible, beside)], dim=-1)
    q = rearrange(fill_up(q, g * block), "b h (g s) c -> (b g) h s c", s=block)
    y = masked_attention(q, k_seen.flatten(0, 1), v_seen.flatten(0, 1), visible.flatten(0, 1), dropout=dropout)
    return rearrange(y, "(b g) h s e -> b h (g s) e", g=g)[:, :, :n]


def without_repeats(key_blocks: Int[Tensor, "#b #h g s"]) -> Int[Tensor, "#b #h g s"]:
    """The same lists with -1 in place of every repeated block."""
    same = key_blocks[..., :, None] == key_blocks[..., None, :]
    return key_blocks.masked_fill(same.tril(diagonal=-1).any(dim=-1), -1)


def gather_blocks(
    x: Float[Tensor, "b h n c"], key_blocks: Int[Tensor, "#b #h g s"], block: int
) -> Float[Tensor, "b g h keys c"]:
    """For each block of queries the tokens of its listed blocks in sequence, arbitrary ones where none is listed."""
    (b, h, _, c), g = x.shape, key_blocks.shape[2]
    blocks = fill_up(x, g * block).reshape(b * h * g, block * c)
    chosen = key_blocks.clamp(0, g - 1).expand(b, h, -1, -1)
    chosen = chosen + g * rearrange(torch.arange(b * h, device=x.device), "(b h) -> b h 1 1", h=h)
    chosen = rearrange(chosen, "b h g s -> b g h s")
    # index_select, because its backward adds whole rows, which is fast; the backward of indexing sorts first
    return blocks.index_select(0, chosen.reshape(-1)).reshape(b, g, h, -1, c)


def sample_without_replacement(draws: Int[Tensor, "*any r"], count: Int[Tensor, "*any"]) -> Int[Tensor, "*any r"]:
    """Distinct numbers below `count`, every subset equally likely for uniform draws; -1 when all are taken."""
    taken: list[Tensor] = []
    for i, draw in enumerate(draws.unbind(dim=-1)):
        rank = draw % (count - i).clamp(min=1)
        for earlier in torch.stack(taken, dim=-1).sort(dim=-1).values.unbind(dim=-1) if taken else ():
            rank = rank + (rank >= earlier)  # skip numbers already taken, smallest first
        taken.append(torch.where(count > i, rank, -1))
    return torch.stack(taken, dim=-1) if taken else draws


def _within(reach: int, i: Int[Tensor, "..."], j: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Only by comparisons: a matrix of distances would be eight times as large."""
    return (j >= i - reach) & (j <= i + reach)


def _look_up(real: Bool[Tensor, "b n"], j: Int[Tensor, "_b g h 1 keys"]) -> Bool[Tensor, "b g h 1 keys"]:
    """Whether there is a real token at these positions."""
    b, n = real.shape
    j = j.expand(b, -1, -1, -1, -1)
    found = real.gather(1, j.clamp(0, n - 1).flatten(1)).reshape(j.shape)
    return found & (j >= 0) & (j < n)


def _append(
    seen: Float[Tensor, "b g h keys c"], x: Float[Tensor, "b h n c"], global_keys: Int[Tensor, "_b _h t"]
) -> Float[Tensor, "b g h keys_and_t c"]:
    b, h, n, c = x.shape
    index = global_keys.clamp(0, n - 1).expand(b, h, -1)
    chosen = x.gather(2, repeat(index, "b h t -> b h t c", c=c))
    return torch.cat([seen, repeat(chosen, "b h t c -> b g h t c", g=seen.shape[1])], dim=3)


def windows(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    step: int = 1,
    left: int,
    right: int,
    causal: bool = False,
    key_mask: Bool[Tensor, "b m"] | None = None,
    positions: Int[Tensor, "b n"] | None = None,
    extra: tuple[Float[Tensor, "b h f c"], Float[Tensor, "b h f e"], Bool[Tensor, "b n f"]] | None = None,
    bias: tuple[Float[Tensor, "b h n w"], Float[Tensor, "b h n #f"]] | None = None,
    size: int = TILE,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n e"]:
    """Tiles of about `size` queries, each with a copy of its keys: the block of `step` tokens, and those beside it.

    The first m - n keys come before the first query. `extra` are additional keys and values, and which queries see
    them. `bias` is added to the scores of near keys, from i - left to i + right, and of extra keys.
    """
    n, m = q.shape[2], k.shape[2]
    # by comparing: min() would stay symbolic in a graph compiled for any length
    step = step if step < n else n
    tile = step * ceil(size, step)
    tile = tile if tile < n else step * ceil(n, step)
    before, after = (side if side < m else m - 1 for side in (left, right))  # no further than there are tokens
    tiles, span = ceil(n, tile), before + tile + after
    missing = tiles * tile - n
    edges = before - (m - n), missing + after
    i, j = torch.arange(tile, device=q.device)[:, None], torch.arange(-before, tile + after, device=q.device)
    block = i // step * step
    near = (j >= block - left) & (j < block + step + right)
    near = near & (j <= i) if causal else near

    real = q.new_ones(q.shape[0], m, dtype=torch.bool) if key_mask is None else key_mask
    real = F.pad(real, edges, value=False).unfold(1, span, tile)
    visible = repeat(real, "b g t -> (b g) 1 s t", s=tile) & near
    if positions is not None:
        queries = rearrange(F.pad(positions, (0, missing)), "b (g s) -> (b g) 1 s 1", s=tile)
        lag = rearrange(F.pad(positions, edges).unfold(1, span, tile), "b g t -> (b g) 1 1 t") - queries
        visible = visible & (lag >= -left) & (lag <= right)
    q = rearrange(fill_up(q, n + missing), "b h (g s) c -> (b g) h s c", s=tile)
    # contiguous for the same reason as in `fill_up`
    k, v = (F.pad(u.contiguous(), (0, 0, *edges)).unfold(2, span, tile) for u in (k, v))
    k, v = (rearrange(u, "b h g c t -> (b g) h t c") for u in (k, v))
    if extra is not None:
        extra_k, extra_v = (repeat(u, "b h f c -> (b g) h f c", g=tiles) for u in extra[:2])
        k, v = torch.cat([extra_k, k], dim=2), torch.cat([extra_v, v], dim=2)
        seen = rearrange(F.pad(extra[2], (0, 0, 0, missing), value=False), "b (g s) f -> (b g) 1 s f", s=tile)
        visible = torch.cat([seen, visible], dim=-1)
    if bias is None:
        y = masked_attention(q, k, v, visible, dropout=dropout)
    else:
        by_near, by_extra = (rearrange(fill_up(x, n + missing), "b h (g s) w -> (b g) h s w", s=tile) for x in bias)
        by_near = skewed(by_near[..., left - before :], span)
        by_extra = by_extra.expand(*by_near.shape[:-1], k.shape[2] - span)
        y = biased_attention(q, k, v, torch.cat([by_extra, by_near], dim=-1), visible, dropout=dropout)
    return rearrange(y, "(b g) h s e -> b h (g s) e", g=tiles)[:, :, :n]


def biased_blocks(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    bias: Float[Tensor, "h s t"],
    *,
    causal: bool,
    key_mask: Bool[Tensor, "b n"] | None,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    """Blocks of s queries over the t keys in and around each block; `bias` is added to their scores."""
    n, (_, block, span) = q.shape[2], bias.shape
    overlap, missing = (span - block) // 2, -n % block
    edges = overlap, missing + overlap
    real = q.new_ones(1, n, dtype=torch.bool) if key_mask is None else key_mask
    visible = rearrange(F.pad(real, edges, value=False).unfold(1, span, block), "b g t -> b g 1 1 t")
    if causal:
        visible = visible & torch.ones(block, span, dtype=torch.bool, device=q.device).tril(overlap)
    blind = ~visible.any(dim=-1, keepdim=True)  # such a row attends to everything, to stay finite, and is then set to 0
    scores = bias.to(q.dtype).masked_fill(~(visible | blind), -torch.inf).expand(len(q), -1, -1, -1, -1)
    q = rearrange(fill_up(q, n + missing), "b h (g s) c -> b g h s c", s=block)
    # contiguous for the same reason as in `fill_up`
    k, v = (F.pad(u.contiguous(), (0, 0, *edges)).unfold(2, span, block) for u in (k, v))
    k, v = (rearrange(u, "b h g c t -> b g h t c") for u in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=scores, dropout_p=dropout).masked_fill(blind, 0)
    return rearrange(y, "b g h s e -> b h (g s) e")[:, :, :n]


def skewed(scores: Float[Tensor, "b h s w"], width: int) -> Float[Tensor, "b h s width"]:
    """Row i shifted right by i, with arbitrary values where nothing was shifted in.

    Rows are read as if each were one element shorter, so that neither this nor its gradient needs indexing.
    """
    s, w = scores.shape[-2:]
    row = width if width > w else w
    flat = F.pad(scores, (0, row + 1 - w)).flatten(-2)
    return flat[..., : s * row].unflatten(-1, (s, row))[..., :width]


def at_distance(scores: Float[Tensor, "b h n s"], distance: Int[Tensor, "n t"]) -> Float[Tensor, "b h n t"]:
    """The score of each distance, arbitrary where there is no such distance."""
    distance = distance.clamp(min=0).clamp(max=max(scores.shape[-1] - 1, 0))
    return scores.gather(-1, distance.expand(*scores.shape[:-1], -1))


def strided(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    stride: int,
    near: bool,
    causal: bool,
    key_mask: Bool[Tensor, "b n"] | None,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    """In a grid with `stride` columns, near keys lie in the rows around a query's own and regular ones in its column,
    so that both sets of scores are dense: n (3 stride + n / stride) entries."""
    n = q.shape[2]
    stride = stride if stride < n else n  # min() would stay symbolic in a graph compiled for any length
    missing = -n % stride
    real = q.new_ones(q.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
    real = rearrange(F.pad(real, (0, missing), value=False), "b (g s) -> b 1 g s", s=stride)
    q, k, v = (rearrange(fill_up(u, n + missing), "b h (g s) c -> b h g s c", s=stride) for u in (q, k, v))
    with without_autocast(q):
        q, k, v = (at_least_single(u) for u in (q / q.shape[-1] ** 0.5, k, v))
        in_rows = einsum(q, _rows_around(k, causal), "b h g s c, b h g t c -> b h g s t")
        in_column = einsum(q, k, "b h g s c, b h r s c -> b h g s r")
        allowed = [_allowed_in_rows(real, stride if near else 1, causal), _allowed_in_column(real, causal)]
        hidden = ~torch.cat(allowed, dim=-1)
        scores = torch.cat([in_rows, in_column], dim=-1).masked_fill(hidden, torch.finfo(q.dtype).min)
        p = F.dropout(torch.softmax(scores, dim=-1).masked_fill(hidden, 0), dropout)
        in_rows, in_column = p.split([in_rows.shape[-1], in_column.shape[-1]], dim=-1)
        y = einsum(in_rows, _rows_around(v, causal), "b h g s t, b h g t e -> b h g s e")
        y = y + einsum(in_column, v, "b h g s r, b h r s e -> b h g s e")
    return rearrange(y, "b h g s e -> b h (g s) e")[:, :, :n]


def _rows_around(x: Float[Tensor, "b h g s c"], causal: bool) -> Float[Tensor, "b h g t c"]:
    """Each row of the grid joined by the row before it and, unless causal, the one after it."""
    rows = F.pad(x, (0, 0, 0, 0, 1, 0 if causal else 1))
    g = x.shape[2]
    return torch.cat([rows[:, :, start : start + g] for start in range(2 if causal else 3)], dim=3)


def _allowed_in_rows(real: Bool[Tensor, "b 1 g s"], distance: int, causal: bool) -> Bool[Tensor, "b 1 g s t"]:
    """The keys in these rows that are nearer than `distance`."""
    stride = real.shape[-1]
    rows = _rows_around(real[..., None].float(), causal)[..., 0] > 0
    here = torch.arange(stride, device=real.device)[:, None]
    lag = torch.arange(-stride, rows.shape[-1] - stride, device=real.device) - here
    within = lag.abs() < distance
    within = within & (lag <= 0) if causal else within
    return rows[..., None, :] & within


def _allowed_in_column(real: Bool[Tensor, "b 1 g s"], causal: bool) -> Bool[Tensor, "b 1 g s r"]:
    """The column of a query without the query itself, which is among the near keys."""
    row = torch.arange(real.shape[2], device=real.device)
    other = row < row[:, None] if causal else row != row[:, None]
    return rearrange(real, "b 1 r s -> b 1 1 s r") & other[:, None]
