"""Exact attention in which each block of queries sees a short list of key blocks, and a few single keys beside them.

Query i sees the real key j when the block of j is in the list of the block of i and |i - j| <= reach, or when j is one
of the columns; and when causal only if j <= i as well. A key that several rules allow counts once. Work and memory
grow with the lengths of the lists and the number of columns, never with n^2. `reference.py` is the law; `gather`, in
this file, hands every block of queries a copy of its keys, on any device; `triton` goes through them tile by tile where
they lie, on a GPU, and `flex` does so for lists of blocks that are not made of tiles.
"""

from collections.abc import Callable, Hashable
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.block_sparse import flex, reference, tiled
from longspan.kernels.block_sparse.plan import Around
from longspan.kernels.dispatch import choose as choose_implementation
from longspan.kernels.filling import fill_up
from longspan.kernels.masked import masked_attention

Impl = Literal["auto", "reference", "gather", "flex", "triton"]


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Int[Tensor, "#b #h g s"] | Callable[[], Int[Tensor, "_b _h g s"]] | Around,
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    columns: Int[Tensor, "#b #h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    pattern: Hashable | None = None,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention over listed blocks and columns; a row that sees no real key gives 0.

    `lists[..., u, :]` are the key blocks of query block u, in any order; what is not a block (-1, or beyond the end)
    stands for none, and a block listed twice counts once. Two numbers are short for its neighbours, so many before and
    so many after it and itself; (0, -1) are none. `columns` are places of keys, -1 for none, each named once.
    `pattern` names lists and columns, by words or by the tensor they come from: where it is the same, they are, for
    rows of one length without padding. What is made of them is then kept, and lists given as a function are not made.
    """
    rules = {"block": block, "reach": reach, "causal": causal, "columns": columns, "key_mask": key_mask}
    if impl == "triton" or (impl == "auto" and tiled.is_faster(q, v, lists, block, dropout)):
        choose_implementation("triton", "block_sparse", q, tiled.unsupported_reason(q, v, lists, block, dropout))
        near = lists if isinstance(lists, tuple) else lambda: without_repeats(_made(lists, q, block))
        return tiled.block_sparse(q, k, v, near, pattern=pattern, **rules)
    if impl == "flex" or (impl == "auto" and flex.is_faster(q, v, block, dropout)):
        return flex.block_sparse(q, k, v, lambda: _made(lists, q, block), pattern=pattern, **rules)
    lists = _made(lists, q, block)
    if impl == "reference":
        return reference.block_sparse(q, k, v, lists, **rules)
    n, g = q.shape[2], lists.shape[2]
    lists = without_repeats(lists)
    real = q.new_ones(q.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
    k_seen, v_seen = gather_blocks(k, lists, block), gather_blocks(v, lists, block)
    visible = _visible_blocks(lists, real, block, reach, causal)
    if columns is not None:
        k_seen, v_seen = (_with_columns(seen, u, columns) for seen, u in ((k_seen, k), (v_seen, v)))
        beside = _visible_columns(columns, lists, real, block, reach, causal)
        rows = max(visible.shape[3], beside.shape[3])
        heads = max(visible.shape[2], beside.shape[2])
        visible = torch.cat([part.expand(-1, -1, heads, rows, -1) for part in (visible, beside)], dim=-1)
    q = rearrange(fill_up(q, g * block), "b h (g s) c -> (b g) h s c", s=block)
    y = masked_attention(q, k_seen.flatten(0, 1), v_seen.flatten(0, 1), visible.flatten(0, 1), dropout=dropout)
    return rearrange(y, "(b g) h s e -> b h (g s) e", g=g)[:, :, :n]


def _made(
    lists: Int[Tensor, "_b _h g s"] | Callable[[], Int[Tensor, "_b _h g s"]] | Around,
    q: Float[Tensor, "b h n c"],
    block: int,
) -> Int[Tensor, "_b _h g s"]:
    if not isinstance(lists, tuple):
        return lists() if callable(lists) else lists
    before, after = lists
    around = torch.arange(-before, after + 1, device=q.device)
    return (torch.arange(-(-q.shape[2] // block), device=q.device)[:, None] + around)[None, None]


def without_repeats(lists: Int[Tensor, "#b #h g s"]) -> Int[Tensor, "#b #h g s"]:
    """The same lists with -1 in place of every block that stands further to the left already."""
    same = lists[..., :, None] == lists[..., None, :]
    return lists.masked_fill(same.tril(diagonal=-1).any(dim=-1), -1)


def gather_blocks(
    x: Float[Tensor, "b h n c"], lists: Int[Tensor, "#b #h g s"], block: int
) -> Float[Tensor, "b g h keys c"]:
    """For each block of queries the tokens of its listed blocks one after the other, any tokens where there is none."""
    (b, h, _, c), g = x.shape, lists.shape[2]
    blocks = fill_up(x, g * block).reshape(b * h * g, block * c)
    chosen = lists.clamp(0, g - 1).expand(b, h, -1, -1)
    chosen = chosen + g * rearrange(torch.arange(b * h, device=x.device), "(b h) -> b h 1 1", h=h)
    chosen = rearrange(chosen, "b h g s -> b g h s")
    # index_select, because its way back adds whole rows, which is quick; that of indexing sorts first
    return blocks.index_select(0, chosen.reshape(-1)).reshape(b, g, h, -1, c)


def choose(draws: Int[Tensor, "*any r"], count: Int[Tensor, "*any"]) -> Int[Tensor, "*any r"]:
    """Different numbers below `count`, each subset as likely as any other for uniform draws; -1 when all are taken."""
    taken: list[Tensor] = []
    for i, draw in enumerate(draws.unbind(dim=-1)):
        rank = draw % (count - i).clamp(min=1)
        for earlier in torch.stack(taken, dim=-1).sort(dim=-1).values.unbind(dim=-1) if taken else ():
            rank = rank + (rank >= earlier)  # skip what is gone, smallest first
        taken.append(torch.where(count > i, rank, -1))
    return torch.stack(taken, dim=-1) if taken else draws


def _places(lists: Int[Tensor, "b h g s"], block: int) -> Int[Tensor, "b g h 1 keys"]:
    """Where the tokens of the listed blocks stand."""
    within = torch.arange(block, device=lists.device)
    return rearrange(lists[..., None] * block + within, "b h g s block -> b g h 1 (s block)")


def _queries(g: int, block: int, device: torch.device) -> Int[Tensor, "1 g 1 block 1"]:
    return rearrange(torch.arange(g * block, device=device), "(g s) -> 1 g 1 s 1", g=g)


def _visible_blocks(
    lists: Int[Tensor, "_b h g s"], real: Bool[Tensor, "b n"], block: int, reach: int | None, causal: bool
) -> Bool[Tensor, "b g h rows keys"]:
    g = lists.shape[2]
    place = _places(lists, block)
    visible = (place >= 0) & _look_up(F.pad(real, (0, g * block - real.shape[1]), value=False), place)
    query = _queries(g, block, lists.device)
    if reach is not None:
        visible = visible & _within(reach, place, query)
    return visible & (place <= query) if causal else visible


def _within(reach: int, place: Int[Tensor, "..."], query: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Whether a key is near enough, by comparisons alone: a matrix of distances would be eight times as large."""
    return (place >= query - reach) & (place <= query + reach)


def _visible_columns(
    columns: Int[Tensor, "_b _h t"],
    lists: Int[Tensor, "_b _h g s"],
    real: Bool[Tensor, "b n"],
    block: int,
    reach: int | None,
    causal: bool,
) -> Bool[Tensor, "b g h rows t"]:
    """Which columns are seen as such: those that the lists do not show already."""
    place = rearrange(columns, "b h t -> b 1 h 1 t")
    listed = rearrange(lists, "b h g s -> b g h 1 1 s")
    shown = (listed == (place // block)[..., None]).any(dim=-1)
    query = _queries(lists.shape[2], block, lists.device)
    if reach is not None:
        shown = shown & _within(reach, place, query)
    visible = (place >= 0) & _look_up(real, place) & ~shown
    return visible & (place <= query) if causal else visible


def _look_up(real: Bool[Tensor, "b n"], place: Int[Tensor, "_b g h 1 keys"]) -> Bool[Tensor, "b g h 1 keys"]:
    """Whether the tokens at these places are real; a place beyond the end has none."""
    b, n = real.shape
    place = place.expand(b, -1, -1, -1, -1)
    found = real.gather(1, place.clamp(0, n - 1).flatten(1)).reshape(place.shape)
    return found & (place < n)


def _with_columns(
    seen: Float[Tensor, "b g h keys c"], x: Float[Tensor, "b h n c"], columns: Int[Tensor, "_b _h t"]
) -> Float[Tensor, "b g h keys_and_t c"]:
    b, h, n, c = x.shape
    place = columns.clamp(0, n - 1).expand(b, h, -1)
    single = x.gather(2, repeat(place, "b h t -> b h t c", c=c))
    return torch.cat([seen, repeat(single, "b h t c -> b g h t c", g=seen.shape[1])], dim=3)


__all__ = ["block_sparse", "choose", "gather_blocks", "without_repeats"]
