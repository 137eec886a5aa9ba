"""Block-sparse attention by torch's flex_attention: tiles that nobody sees are skipped, and no block of keys is copied.

The keys stand in one row: the columns first, filled up to whole tiles, then all tokens, of which those that are columns
are hidden. So a few columns cost a few tiles wherever they come from. Tiles of 128 are what the kernel's own tiles
divide on every GPU; blocks of 64 have tiles of 64, half as fast as larger ones but with nothing in them that nobody
sees. Where blocks are made of neither, a table of blocks is looked up inside a tile.

    whole tiles      seen by all their queries, computed without looking at any rule
    broken tiles     the rules are applied pair by pair

A mask is an array of (n / tile)^2 small numbers. With a `pattern` it is made once for each shape and kept, and then
nothing but the kernel itself runs; with a mask of keys it is made anew, on the device and without waiting for it.
"""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from longspan.kernels.block_sparse.kept import remembered
from longspan.kernels.block_sparse.plan import apart
from longspan.kernels.fused import is_counted

TILE = 128
LEAST = 2048  # tokens below which the other path is as quick, and nobody waits for a compiler
CASES = 64  # of types, gradients and kinds of mask that may be compiled; no length is a case
FAR = 2**28  # beyond every place


def is_faster(q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], block: int, dropout: float) -> bool:
    """Whether this is the quicker path here.

    The other one writes every block of keys and values as often as it is seen and reads it back; this one multiplies
    whole tiles, at worst four times the pairs of blocks of 64. Tensor cores make that the better bargain in half
    precision. What counts operations looks at the other path: it cannot see into a compiled kernel.
    """
    if q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16) or q.dtype != v.dtype or dropout:
        return False
    if is_counted():
        return False
    widths = all(16 <= width <= 128 for width in (q.shape[-1], v.shape[-1]))
    return widths and block >= TILE // 2 and q.shape[2] >= LEAST


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Callable[[], Int[Tensor, "_b _h g s"]],
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    columns: Int[Tensor, "_b _h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
    pattern: Hashable | None = None,
) -> Float[Tensor, "b h n e"]:
    (b, h, n), tile = q.shape[:3], tile_of(block)
    columns = None if columns is None or not columns.shape[2] else _whole_tiles(columns, tile)
    rules = {"block": block, "reach": reach, "causal": causal}

    def make() -> BlockMask:
        tiled = block % tile == 0 and q.device.type != "cpu"  # on a CPU all pairs are asked for
        return block_mask((b, h, n), lists(), columns=columns, key_mask=key_mask, tiled=tiled, **rules)

    if key_mask is None and pattern is not None:
        mask = remembered(pattern, ("flex", *rules.values(), b, h, n, q.device), make)
    else:
        mask = make()
    if columns is not None:
        k, v = (torch.cat([_singles(u, columns), u], dim=2) for u in (k, v))
    # A caller who is compiled himself takes the kernel into his graph; a CPU has only the formula behind it.
    if torch.compiler.is_compiling() or q.device.type == "cpu":
        return flex_attention(q, k, v, block_mask=mask, kernel_options=_options(tile))
    with torch._dynamo.config.patch(recompile_limit=CASES):
        return _compiled()(q, k, v, block_mask=mask, kernel_options=_options(tile))


def tile_of(block: int) -> int:
    """The side of a tile: half as long where that makes the blocks whole tiles.

    >>> tile_of(256), tile_of(64), tile_of(96)
    (128, 64, 128)
    """
    return TILE // 2 if block % TILE == TILE // 2 else TILE


def _options(tile: int) -> Any:
    """What the kernel has to be told.

    Torch compares a mask with the tiles it likes best on the way back, and finds no kernel for a smaller one, even when
    smaller ones are asked for. So a mask always says that its tiles are the usual ones, and here is the truth.
    """
    if tile == TILE:
        return None
    sides = ("SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE", "BLOCK_M", "BLOCK_N")
    back = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    return dict.fromkeys((*sides, *back), tile)


@cache
def _compiled() -> Callable[..., Any]:
    """The fused kernel, compiled once for all lengths."""
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def block_mask(
    shape: tuple[int, int, int],
    lists: Int[Tensor, "_b _h g s"],
    *,
    block: int,
    reach: int | None,
    causal: bool,
    columns: Int[Tensor, "_b _h t"] | None,
    key_mask: Bool[Tensor, "b n"] | None,
    tiled: bool,
) -> BlockMask:
    """What every tile and every pair inside a broken tile is to the kernel.

    `tiled` says that blocks are made of whole tiles, and that nobody asks about a pair outside of the tiles named here.
    """
    (b, h, n), device, tile = shape, lists.device, tile_of(block)
    at = torch.arange(n, dtype=torch.int32, device=device)
    top = at if causal else torch.full_like(at, n - 1)
    low = torch.zeros_like(at) if reach is None else at - reach
    high = top if reach is None else torch.minimum(top, at + reach)

    keys = at.expand(1, 1, -1) if key_mask is None else at.where(key_mask, n)[:, None]
    listed, ahead = _table(lists), 0
    if columns is not None:
        ahead = columns.shape[2]
        singles, keys = apart(columns, keys, n)
    broken, whole = _tiles(n, block, tile, listed, low, high, keys < n)
    if columns is not None:
        seen = _column_tiles(singles, top, tile)
        broken, whole = _beside(seen, broken), _beside(torch.zeros_like(seen), whole)
        keys = torch.cat([singles.sub(FAR), keys], dim=2)  # so far away that only the third limit sees them
    keys = keys.expand(b, h, -1).contiguous()
    limits = torch.stack([low, high, top - FAR, at // block])  # one tensor, so that there are few cases to compile
    # not a padded `at`: what goes into the kernel must have no branch of its own, or torch cannot compile it
    group = (torch.arange(ahead + n, dtype=torch.int32, device=device) - ahead).clamp(min=0) // block
    listed = listed.expand(b, h, -1, -1)

    def within(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        place = keys[row, head, j]
        return ((place >= limits[0, i]) & (place <= limits[1, i])) | (place <= limits[2, i])

    def within_listed(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        place = keys[row, head, j]
        near = (place >= limits[0, i]) & (place <= limits[1, i])
        return (near & listed[row, head, limits[3, i], group[j]]) | (place <= limits[2, i])

    visible = within if tiled else within_listed
    return BlockMask((n, ahead + n), *_four(broken, whole), BLOCK_SIZE=(TILE, TILE), mask_mod=visible)


def _whole_tiles(columns: Int[Tensor, "_b _h t"], tile: int) -> Int[Tensor, "_b _h tiles"]:
    return F.pad(columns, (0, -columns.shape[2] % tile), value=-1)


def _singles(x: Float[Tensor, "b h n c"], columns: Int[Tensor, "_b _h t"]) -> Float[Tensor, "b h t c"]:
    """The keys or values at these places, any where there is none."""
    b, h, n, c = x.shape
    return x.gather(2, repeat(columns.clamp(0, n - 1).expand(b, h, -1), "b h t -> b h t c", c=c))


def _table(lists: Int[Tensor, "_b _h g s"]) -> Bool[Tensor, "_b _h g g"]:
    """Which block sees which."""
    g = lists.shape[2]
    none = torch.zeros(*lists.shape[:3], g + 1, dtype=torch.bool, device=lists.device)
    exists = (lists >= 0) & (lists < g)
    return none.scatter(3, lists.where(exists, g).long(), True)[..., :g]


def _tiles(
    n: int,
    block: int,
    tile: int,
    listed: Bool[Tensor, "_b _h g g"],
    low: Int[Tensor, " n"],
    high: Int[Tensor, " n"],
    there: Bool[Tensor, "_rows _heads n"],
) -> tuple[Bool[Tensor, "_bb _hh u u"], Bool[Tensor, "_bb _hh u u"]]:
    """The tiles of tokens that are seen in part, and those that are seen as a whole."""
    first = torch.arange(0, n, tile, device=listed.device)
    last = (first + tile - 1).clamp(max=n - 1)
    most = (tile - 1) // block + (1 if tile % block == 0 or block % tile == 0 else 2)  # blocks that a tile can touch
    touched = first[:, None] // block + torch.arange(most, device=first.device)
    touched = torch.minimum(touched, last[:, None] // block)
    pairs = listed[:, :, touched][..., touched]  # [b h u blocks u blocks]
    seen = pairs.any(dim=5).any(dim=3) & (high[last][:, None] >= first) & (low[first][:, None] <= last)
    whole = pairs.all(dim=5).all(dim=3) & (low[last][:, None] <= first) & (high[first][:, None] >= last)
    some, every = _in_tiles(there, tile, False).any(dim=3), _in_tiles(there, tile, True).all(dim=3)
    seen, whole = seen & some[:, :, None], whole & every[:, :, None]
    return seen & ~whole, whole


def _in_tiles(there: Bool[Tensor, "_b _h n"], tile: int, beyond: bool) -> Bool[Tensor, "_b _h u tile"]:
    return F.pad(there, (0, -there.shape[2] % tile), value=beyond).unflatten(2, (-1, tile))


def _column_tiles(singles: Int[Tensor, "_b _h t"], top: Int[Tensor, " n"], tile: int) -> Bool[Tensor, "_b _h u tiles"]:
    """Which tiles of columns a tile of queries sees anything of."""
    earliest = singles.unflatten(2, (-1, tile)).amin(dim=3)
    last = torch.arange(tile - 1, len(top) + tile - 1, tile, device=top.device).clamp(max=len(top) - 1)
    return earliest[:, :, None] <= top[last][:, None]


def _beside(one: Bool[Tensor, "_b _h u t"], other: Bool[Tensor, "_bb _hh u w"]) -> Bool[Tensor, "_bbb _hhh u t_and_w"]:
    rows, heads = max(len(one), len(other)), max(one.shape[1], other.shape[1])
    return torch.cat([part.expand(rows, heads, -1, -1) for part in (one, other)], dim=3)


def _ordered(tiles: Bool[Tensor, "_b _h u w"]) -> tuple[Int[Tensor, "_b _h u"], Int[Tensor, "_b _h u w"]]:
    """How many tiles there are in each row, and which, first ones first.

    Counted by searching: a sum along one of two axes that are equally long and of any length is more than torch's
    compiler can cut into loops. It cannot search for a constant either, so the 1 comes out of a tensor.
    """
    there, order = tiles.int().sort(dim=-1, descending=True, stable=True)
    count = torch.searchsorted((1 - there).contiguous(), there[..., :1].clamp(min=1))[..., 0]
    return count.int(), order.int().contiguous()


def _four(broken: Bool[Tensor, "_b _h u w"], whole: Bool[Tensor, "_b _h u w"]) -> list[Int[Tensor, "..."]]:
    """Broken and whole tiles of every tile of queries, then of keys."""
    return [part for tiles in (broken, whole, broken.mT, whole.mT) for part in _ordered(tiles)]
