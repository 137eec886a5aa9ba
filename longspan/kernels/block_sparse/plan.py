"""What the tiles of block-sparse attention are told: where keys stand, which tiles meet, and which keys are columns.

A place of n or more stands for none: a key that is hidden, or seen as a column, or what fills up a chunk. Keys come in
chunks, of which only those that hold such a place, or lie at the edge of what their queries see, are looked at pair by
pair. Everything here is whole numbers, a few for each tile, and is made on the device without waiting for it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from longspan.kernels.launch import ceil

CHUNK = 64  # tokens that a program takes at a time
TILE = 128  # queries of a program, unless lists differ within so many
FEW = 16  # columns that are a chunk of their own
BEYOND = 2**30  # a place after every other: with the length itself to fill up with, a graph would be for one length

Lists = Int[Tensor, "_b _h g s"]
Around = tuple[int, int]  # blocks before and after the own one


class Plan(NamedTuple):
    """Whole numbers that rows and heads share where they are the same; None for what there is none of."""

    places: Int[Tensor, "r a filled"] | None = None  # of all tokens
    latest: Int[Tensor, "r a chunks"] | None = None  # the greatest place of each chunk
    tiles: Int[Tensor, "r a u w"] | None = None  # of keys that each tile of queries sees, as many as are counted
    counts: Int[Tensor, "r a u"] | None = None
    seers: Int[Tensor, "r a uw"] | None = None  # tiles of queries by the tile of keys that they see, which starts here:
    starts: Int[Tensor, "r a u_plus_1"] | None = None
    columns: Int[Tensor, "r a t"] | None = None  # their places in rising order
    columns_latest: Int[Tensor, "r a c"] | None = None
    until: Int[Tensor, "r a chunks"] | None = None  # the chunks of columns of which a chunk of queries sees anything


def side_of(block: int, listed: bool) -> int:
    """The side of a tile of queries, all of which have one list.

    >>> side_of(256, True), side_of(64, True), side_of(91, False)
    (128, 64, 128)
    """
    return CHUNK if listed and block % TILE else TILE


def column_chunk(columns: int) -> int:
    """The columns that a program takes at a time."""
    return FEW if columns <= FEW else CHUNK


def make_plan(
    n: int,
    lists: Lists | Around,
    *,
    block: int,
    reach: int | None,
    causal: bool,
    columns: Int[Tensor, "_b _h t"] | None,
    key_mask: Bool[Tensor, "b n"] | None,
    device: torch.device,
) -> Plan:
    """Of lists without repeats."""
    side, made = side_of(block, not isinstance(lists, tuple)), Plan()
    at = torch.arange(n, dtype=torch.int32, device=device)
    keys = at.expand(1, 1, -1) if key_mask is None else at.where(key_mask, n)[:, None]
    columns = None if columns is None or not columns.shape[2] else columns
    if columns is not None:
        singles, keys = apart(columns, keys, n)
        made = made._replace(**_columns(singles, n, causal))
    if columns is not None or key_mask is not None:
        places = _chunks(keys, CHUNK, ceil(n, side) * (side // CHUNK))
        made = made._replace(places=places.flatten(2), latest=places.amax(dim=3))
    if not isinstance(lists, tuple):
        made = made._replace(**_tiles(lists, n, side, block, reach, causal))
    rows, heads = torch.broadcast_shapes((1, 1), *(part.shape[:2] for part in made if part is not None))
    return Plan(
        *(None if part is None else part.expand(rows, heads, *part.shape[2:]).int().contiguous() for part in made)
    )


def apart(
    columns: Int[Tensor, "_b _h t"], keys: Int[Tensor, "_rows 1 n"], n: int
) -> tuple[Int[Tensor, "_bb _h t"], Int[Tensor, "_bb _h n"]]:
    """Where the columns stand, and where the tokens that are none of them do; n for those that do not count."""
    columns, keys = torch.broadcast_tensors(columns[..., None], keys[..., None, :])
    columns, keys = columns[..., 0].int(), keys[..., 0, :]
    exists = (columns >= 0) & (columns < n)
    singles = keys.gather(2, columns.clamp(0, n - 1).long()).masked_fill(~exists, n)
    taken = F.pad(keys, (0, 1)).scatter(2, columns.where(exists, n).long(), n)[..., :n]
    return singles, taken


def _chunks(places: Int[Tensor, "_b _h n"], chunk: int, count: int) -> Int[Tensor, "_b _h count chunk"]:
    """The same places filled up; by a product, since a graph for any length cannot divide a sum."""
    return F.pad(places, (0, count * chunk - places.shape[2]), value=BEYOND).unflatten(2, (count, chunk))


def _columns(singles: Int[Tensor, "_b _h t"], n: int, causal: bool) -> dict[str, Tensor]:
    t, chunk = singles.shape[2], column_chunk(singles.shape[2])
    columns = _chunks(singles.sort(dim=2).values, chunk, ceil(t, chunk))
    last = torch.arange(1, ceil(n, CHUNK) + 1, dtype=torch.int32, device=columns.device) * CHUNK - 1
    earliest, last = columns[..., 0].contiguous(), last.expand(*columns.shape[:2], -1).contiguous()
    if causal:
        until = torch.searchsorted(earliest, last, right=True)
    else:  # all that exist; torch's compiler cannot search for a constant
        until = (earliest < n).sum(dim=2, keepdim=True).expand_as(last).contiguous()
    return {"columns": columns.flatten(2), "columns_latest": columns[..., -1], "until": until}


def _tiles(lists: Lists, n: int, side: int, block: int, reach: int | None, causal: bool) -> dict[str, Tensor]:
    """The tiles of keys that each tile of queries sees, and the other way round."""
    g, per, device = lists.shape[2], block // side, lists.device
    u = torch.arange(ceil(n, side), device=device)
    own = lists[:, :, u // per]
    tiles = (own[..., None] * per + torch.arange(per, device=device)).flatten(3)
    seen = ((own >= 0) & (own < g)).repeat_interleave(per, dim=3) & (tiles < len(u))
    if causal:
        seen = seen & (tiles <= u[:, None])
    if reach is not None:
        seen = seen & ((tiles - u[:, None]).abs() * side - (side - 1) <= reach)
    tiles = tiles.masked_fill(~seen, len(u)).sort(dim=3).values
    keys, order = tiles.flatten(2).sort(dim=2, stable=True)
    edges = torch.arange(len(u) + 1, device=device).expand(*lists.shape[:2], -1).contiguous()
    counts, starts = (tiles < len(u)).sum(dim=3), torch.searchsorted(keys, edges)
    return {"tiles": tiles, "counts": counts, "seers": order // tiles.shape[3], "starts": starts}
