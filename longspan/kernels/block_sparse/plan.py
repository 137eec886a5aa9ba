"""The plan of block-sparse attention: which tiles of keys each tile of queries visits, and the positions of the keys.

A position of n or more means that the key is not seen there: it is padding, or a global key, visited separately. Keys
come in chunks; only a chunk that holds such a position, or lies at the edge of what its queries see, is masked pair by
pair. A plan holds a few integers for each tile and is made on the device without synchronisation.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.launch import ceil

CHUNK = 64  # tokens that a program takes at a time
TILE = 128  # queries of a program, unless the lists differ within that many
FEW = 16  # global keys that make a chunk of their own
BEYOND = 2**30  # a position after every other; n itself would tie a compiled graph to one length
CACHED = 16  # plans that are kept, the most recent ones

KeyBlocks = Int[Tensor, "_b _h g s"]
Neighbours = tuple[int, int]  # blocks before and after the query's own


class Rules(NamedTuple):
    """Query i sees the keys from `before` blocks before its own to `after` blocks after it that are within `reach`."""

    block: int
    before: int
    after: int
    reach: int
    causal: bool


class Plan(NamedTuple):
    """Integers that rows and heads share where they are the same; None for what a call does not need."""

    positions: Int[Tensor, "r a padded"] | None = None  # of all tokens
    chunk_max: Int[Tensor, "r a chunks"] | None = None  # the greatest position in each chunk
    key_tiles: Int[Tensor, "r a u w"] | None = None  # that each tile of queries visits, the first `key_counts` of them
    key_counts: Int[Tensor, "r a u"] | None = None
    query_tiles: Int[Tensor, "r a uw"] | None = None  # the transpose: that visit each tile of keys, from `query_starts`
    query_starts: Int[Tensor, "r a u_plus_1"] | None = None
    global_keys: Int[Tensor, "r a t"] | None = None  # positions in rising order
    global_max: Int[Tensor, "r a c"] | None = None  # the greatest position in each chunk of global keys
    global_counts: Int[Tensor, "r a chunks"] | None = None  # chunks of global keys that each chunk of queries visits


def tile_side(block: int, listed: bool) -> int:
    """The side of a tile of queries, all of which share one list.

    >>> tile_side(256, True), tile_side(64, True), tile_side(91, False)
    (128, 64, 128)
    """
    return CHUNK if listed and block % TILE else TILE


def tile_of_queries(side: int, distance: int) -> int:
    """The queries of a program in the forward pass."""
    return CHUNK if distance else side


def global_chunk(count: int) -> int:
    """The global keys that a program takes at a time."""
    return FEW if count <= FEW else CHUNK


def distance_of(terms: Float[Tensor, "b h n l"] | None) -> int:
    """The distance D at which labels are clamped, for 2 D + 2 labels; 0 without labels."""
    return 0 if terms is None else terms.shape[3] // 2 - 1


def make_plan(
    n: int,
    key_blocks: KeyBlocks | Neighbours,
    *,
    block: int,
    reach: int | None,
    causal: bool,
    global_keys: Int[Tensor, "_b _h t"] | None,
    key_mask: Bool[Tensor, "b n"] | None,
    device: torch.device,
) -> Plan:
    """The plan for lists without repeats."""
    side, plan = tile_side(block, not isinstance(key_blocks, tuple)), Plan()
    position = torch.arange(n, dtype=torch.int32, device=device)
    keys = position.expand(1, 1, -1) if key_mask is None else position.where(key_mask, n)[:, None]
    global_keys = None if global_keys is None or not global_keys.shape[2] else global_keys
    if global_keys is not None:
        chosen, keys = _set_apart(global_keys, keys, n)
        plan = plan._replace(**_global_chunks(chosen, n, causal))
    if global_keys is not None or key_mask is not None:
        chunks = _in_chunks(keys, CHUNK, ceil(n, side) * (side // CHUNK))
        plan = plan._replace(positions=chunks.flatten(2), chunk_max=chunks.amax(dim=3))
    if not isinstance(key_blocks, tuple):
        plan = plan._replace(**_tiles(key_blocks, n, side, block, reach, causal))
    rows, heads = torch.broadcast_shapes((1, 1), *(part.shape[:2] for part in plan if part is not None))
    return Plan(
        *(None if part is None else part.expand(rows, heads, *part.shape[2:]).int().contiguous() for part in plan)
    )


def _set_apart(
    global_keys: Int[Tensor, "_b _h t"], keys: Int[Tensor, "_rows 1 n"], n: int
) -> tuple[Int[Tensor, "_bb _h t"], Int[Tensor, "_bb _h n"]]:
    """Positions of the global keys, and of all other tokens; n for those that are not seen."""
    global_keys, keys = torch.broadcast_tensors(global_keys[..., None], keys[..., None, :])
    global_keys, keys = global_keys[..., 0].int(), keys[..., 0, :]
    exists = (global_keys >= 0) & (global_keys < n)
    chosen = keys.gather(2, global_keys.clamp(0, n - 1).long()).masked_fill(~exists, n)
    others = F.pad(keys, (0, 1)).scatter(2, global_keys.where(exists, n).long(), n)[..., :n]
    return chosen, others


def _in_chunks(positions: Int[Tensor, "_b _h n"], chunk: int, count: int) -> Int[Tensor, "_b _h count chunk"]:
    """Padded to a product of sizes: a graph compiled for any length cannot divide a sum of them."""
    return F.pad(positions, (0, count * chunk - positions.shape[2]), value=BEYOND).unflatten(2, (count, chunk))


def _global_chunks(chosen: Int[Tensor, "_b _h t"], n: int, causal: bool) -> dict[str, Tensor]:
    t, chunk = chosen.shape[2], global_chunk(chosen.shape[2])
    keys = _in_chunks(chosen.sort(dim=2).values, chunk, ceil(t, chunk))
    last = torch.arange(1, ceil(n, CHUNK) + 1, dtype=torch.int32, device=keys.device) * CHUNK - 1
    last = last if causal else torch.full_like(last, n - 1)  # else all that exist
    counts = (keys[:, :, None, :, 0] <= last[:, None]).sum(dim=3)
    return {"global_keys": keys.flatten(2), "global_max": keys[..., -1], "global_counts": counts}


def _tiles(key_blocks: KeyBlocks, n: int, side: int, block: int, reach: int | None, causal: bool) -> dict[str, Tensor]:
    """The tiles of keys that each tile of queries visits, and the transpose."""
    g, per, device = key_blocks.shape[2], block // side, key_blocks.device
    u = torch.arange(ceil(n, side), device=device)
    own = key_blocks[:, :, u // per]
    tiles = (own[..., None] * per + torch.arange(per, device=device)).flatten(3)
    seen = ((own >= 0) & (own < g)).repeat_interleave(per, dim=3) & (tiles < len(u))
    if causal:
        seen = seen & (tiles <= u[:, None])
    if reach is not None:
        seen = seen & ((tiles - u[:, None]).abs() * side - (side - 1) <= reach)
    tiles = tiles.masked_fill(~seen, len(u)).sort(dim=3).values
    keys, order = tiles.flatten(2).sort(dim=2, stable=True)
    edges = torch.arange(len(u) + 1, device=device).expand(*key_blocks.shape[:2], -1).contiguous()
    counts, starts = (tiles < len(u)).sum(dim=3), torch.searchsorted(keys, edges)
    queries = order // tiles.shape[3]
    return {"key_tiles": tiles, "key_counts": counts, "query_tiles": queries, "query_starts": starts}


def computed_pairs(q: Float[Tensor, "b h n c"], plan: Plan, rules: Rules, tile: int) -> int:
    """Pairs of a query and a key that a pass with this tile of queries computes: whole tiles, without skipped ones."""
    b, h, n, _ = q.shape
    first = torch.arange(0, n, tile)
    last = (first + tile).clamp(max=n) - 1
    block, before, after, reach, causal = rules
    if plan.key_counts is not None:
        side = tile_side(block, True)
        keys = plan.key_counts.cpu()[..., first // side] * side
    else:
        low = torch.maximum(first - reach, (first // block - before) * block).clamp(min=0)
        high = torch.minimum(last + reach, (last // block + after + 1) * block - 1).clamp(max=n - 1)
        high = torch.minimum(high, last) if causal else high
        keys = ((high + CHUNK) // CHUNK - low // CHUNK).clamp(min=0)[None, None] * CHUNK
    if plan.global_counts is not None and plan.global_keys is not None:
        chunks = plan.global_counts.cpu()[..., last // CHUNK]
        keys = keys + chunks * global_chunk(plan.global_keys.shape[2])
    return tile * int(keys.sum()) * (b * h) // (keys.shape[0] * keys.shape[1])


_cached: OrderedDict[Hashable, Plan] = OrderedDict()


class _Version:
    """A tensor as a cache key: equal to itself until it is modified in place."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor, 0 if tensor.is_inference() else tensor._version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Version) and self.tensor is other.tensor and self.version == other.version

    def __hash__(self) -> int:
        return hash((id(self.tensor), self.version))


def cached_plan(key: Hashable, rules: tuple[Hashable, ...], make: Callable[[], Plan]) -> Plan:
    """The plan for this key and these rules, made at the first call; in a compiled graph it is made every time."""
    if torch.compiler.is_compiling():
        return make()
    full = (_Version(key) if isinstance(key, Tensor) else key, *rules)
    if full not in _cached:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return make()  # tensors captured in a CUDA graph hold no data until it is replayed
        with torch.inference_mode(False):  # it may be used for training later
            _cached[full] = make()
        if len(_cached) > CACHED:
            _cached.popitem(last=False)
    _cached.move_to_end(full)
    return _cached[full]
