"""Exact attention over few keys: listed blocks, a sliding window, overlapping blocks, a stride, and global keys.

    block_sparse        listed blocks of keys for each block of queries, cut to |i - j| <= reach, and global keys
    sliding_window      the keys i - left ... i + right
    overlapping_blocks  the block of i, and `overlap` keys on either side of it
    strided             every `stride`-th key counted from i, and those nearer than `stride`

A query sees only real keys, and only j <= i when causal; a key that several rules allow is counted once; a row that
sees no key gives 0. `reference.py` defines the result. `gather.py` copies the keys of each block, on any device;
`triton.py` reads them in place, tile by tile, on a GPU. Work and memory grow with the number of visible keys, never
with n^2. In addition, `labels.py` has windows whose scores depend on the distance between two tokens, and
`extra_keys.py` handles keys from outside the row.
"""

from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels import sdpa
from longspan.kernels.block_sparse import gather, operator, reference
from longspan.kernels.block_sparse.gather import gather_blocks, sample_without_replacement, without_repeats
from longspan.kernels.block_sparse.plan import CHUNK, KeyBlocks, Neighbours, Plan, cached_plan, make_plan
from longspan.kernels.dispatch import choose, lack_of_room
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import Layout
from longspan.kernels.precision import without_autocast

Impl = Literal["auto", "reference", "gather"]
Listed = KeyBlocks | Callable[[], KeyBlocks] | Neighbours
SHORTEST = 128  # tokens: less than a tile of queries is not worth compiling a kernel for
WIDEST = 128  # channels that the kernel takes
WIDE, WIDE_BYTES = 64, 160 * 1024  # above this width programs need more shared memory than small GPUs have


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    key_blocks: Listed,
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    global_keys: Int[Tensor, "#b #h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    cache_key: Hashable | None = None,
    impl: Impl | Literal["triton"] = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention over listed blocks of keys and over global keys.

    `key_blocks[..., u, :]` are the key blocks of query block u in any order; invalid indices (-1, or beyond the end)
    stand for none. A pair of numbers means neighbours: that many blocks before and after the query's own, which is
    included; (0, -1) means none. `global_keys` are positions without repeats, -1 for none.

    With a `cache_key`, a hashable value or the tensor from which lists and global keys are made, the kernel's plan is
    cached for calls of the same shape without `key_mask`; `key_blocks` given as a function is then not called again.
    """
    rules = {"block": block, "reach": reach, "causal": causal, "global_keys": global_keys, "key_mask": key_mask}
    if impl == "triton" or (impl == "auto" and is_faster(q, v, key_blocks, block, dropout)):
        choose("triton", "block_sparse", q, unsupported_reason(q, v, key_blocks, block, dropout))
        return _by_tiles(q, k, v, key_blocks, cache_key=cache_key, **rules)
    key_blocks = _listed(key_blocks, q, block)
    if impl == "reference":
        i, j = reference.positions_of(q)
        allowed = reference.listed(i, j, key_blocks, block, reach)
        allowed = allowed if global_keys is None else allowed | reference.named(j, global_keys)
        return reference.attend(q, k, v, allowed, causal=causal, key_mask=key_mask)
    return gather.block_sparse(q, k, v, key_blocks, **rules, dropout=dropout)


def sliding_window(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    left: int,
    right: int,
    key_mask: Bool[Tensor, "b n"] | None = None,
    positions: Int[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention of query i over the real keys i - left ... i + right.

    `positions` of the tokens, in increasing order, replace 0, 1, 2...: gaps between packed rows keep them apart.
    """
    if impl == "reference":
        i, j = (
            reference.positions_of(q) if positions is None else (positions[:, None, :, None], positions[:, None, None])
        )
        return reference.attend(q, k, v, reference.window(i, j, left, right), key_mask=key_mask)
    assert positions is None or positions.shape[1] == q.shape[2]  # also tells torch.compile that both are the same size
    if impl == "auto" and positions is None:
        # by comparing: min() would stay symbolic in a graph compiled for any length
        before, after = (side if side < q.shape[2] else q.shape[2] - 1 for side in (left, right))
        by_tiles = is_faster(q, v, (before, after), 1, dropout)
        if key_mask is None and sdpa.flash_fits(q, v) and not (by_tiles and q.shape[3] <= WIDE):
            return sdpa.flash_window(q, k, v, left=before, right=after, dropout=dropout)  # for dropout and wide heads
        if by_tiles:
            options = {"key_mask": key_mask, "cache_key": "sliding_window"}
            return block_sparse(q, k, v, (before, after), block=1, **options, impl="triton")
    size = max(gather.TILE, left + right)  # at most twice the keys that are needed
    options = {"key_mask": key_mask, "positions": positions, "dropout": dropout}
    return gather.windows(q, k, v, left=left, right=right, size=size, **options)


def packed_sliding_window(
    q: Float[Tensor, "t h c"],
    k: Float[Tensor, "t h c"],
    v: Float[Tensor, "t h e"],
    layout: Layout,
    *,
    left: int,
    right: int,
    dropout: float = 0.0,
) -> Float[Tensor, "t h e"]:
    """`sliding_window` over the packed real tokens of padded rows, whose positions are those before packing."""
    if layout.together and sdpa.flash_fits(q, v):
        return sdpa.flash_ragged(q, k, v, layout, window=(left, right), dropout=dropout)
    positions = layout.places(apart=max(left, right) + 1)[None]
    q, k, v = (rearrange(u, "t h c -> 1 h t c") for u in (q, k, v))
    y = sliding_window(q, k, v, left=left, right=right, positions=positions, dropout=dropout)
    return rearrange(y, "1 h t e -> t h e")


def overlapping_blocks(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    block: int,
    overlap: int = 0,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    bias: Float[Tensor, "h s t"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention within consecutive blocks, each widened by `overlap` keys to the left and to the right.

    `bias` is added to the scores of the s queries of a block and the t keys in and around it.
    """
    rules = {"causal": causal, "key_mask": key_mask}
    if impl == "reference":
        allowed = reference.window(*reference.positions_of(q), overlap, overlap, block)
        places = reference.positions_of(q)
        added = None if bias is None else reference.in_block(*places, bias, block, overlap)
        return reference.attend(q, k, v, allowed, **rules, bias=added)
    if bias is not None:
        return gather.biased_blocks(q, k, v, bias, **rules, dropout=dropout)
    block, overlap = (size if size < q.shape[2] else q.shape[2] for size in (block, overlap))
    around = overlap // block, overlap // block
    if impl == "auto" and overlap % block == 0 and is_faster(q, v, around, block, dropout):
        return block_sparse(q, k, v, around, block=block, **rules, cache_key="overlapping_blocks", impl="triton")
    return gather.windows(q, k, v, step=block, left=overlap, right=overlap, **rules, size=block, dropout=dropout)


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
    """Softmax attention over the keys at multiples of `stride` from the query, and with `near` over all nearer keys."""
    rules = {"causal": causal, "key_mask": key_mask}
    if impl == "reference":
        return reference.attend(q, k, v, reference.regular(*reference.positions_of(q), stride, near), **rules)
    return gather.strided(q, k, v, stride=stride, near=near, **rules, dropout=dropout)


def with_global_queries(
    y: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    positions: Int[Tensor, "#b t"],
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    ends: tuple[int, int] | None = None,
) -> Float[Tensor, "b h n e"]:
    """y with the rows at these positions (-1, or beyond the end, for none) attending to all keys.

    `ends` says that the positions are this many at the beginning and this many at the end, which saves a copy.
    """
    b, h, n, _ = q.shape
    positions = positions.expand(b, -1)
    index = positions.clamp(0, n - 1)
    chosen = q.gather(2, repeat(index, "b t -> b h t c", h=h, c=q.shape[3]))
    if causal or key_mask is not None:
        seen = q.new_ones(b, 1, 1, n, dtype=torch.bool) if key_mask is None else key_mask[:, None, None]
        seen = seen & (torch.arange(n, device=q.device) <= index[:, None, :, None]) if causal else seen
        rows = masked_attention(chosen, k, v, seen, dropout=dropout)
    else:
        rows = F.scaled_dot_product_attention(chosen, k, v, dropout_p=dropout)
    if ends is not None:  # no scatter into y: torch 2.11 compiles its gradients wrongly
        first, last = ends
        rows = rows.to(y.dtype)
        return torch.cat([rows[:, :, :first], y[:, :, first : n - last], rows[:, :, first:]], dim=2)
    index = positions.where((positions >= 0) & (positions < n), n)  # a row after the last, which is cut off again
    index = repeat(index, "b t -> b h t e", h=h, e=y.shape[3])
    return F.pad(y, (0, 0, 0, 1)).scatter(2, index, rows.to(y.dtype))[:, :, :n]


def is_faster(
    q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], key_blocks: Listed, block: int, dropout: float
) -> bool:
    """Whether the Triton kernel takes this call."""
    if q.shape[2] < SHORTEST:
        return False
    return choose("auto", "block_sparse", q, unsupported_reason(q, v, key_blocks, block, dropout)) == "triton"


def unsupported_reason(
    q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], key_blocks: Listed, block: int, dropout: float
) -> str:
    """Why the Triton kernel cannot take this call, or ""."""
    c, e = q.shape[3], v.shape[3]
    half = q.dtype in (torch.bfloat16, torch.float16) or (q.dtype == torch.float32 and q.device.type == "cpu")
    if q.dtype != v.dtype or not half:
        return f"it takes q, k and v all in one half precision (float32 on a CPU), got {q.dtype} and {v.dtype}"
    if not isinstance(key_blocks, tuple) and block % CHUNK:
        return f"lists must be of blocks of a multiple of {CHUNK} tokens, got block={block}"
    if dropout:
        return "it has no dropout"
    if max(c, e) > WIDEST or not (q.numel() and v.numel()):
        return f"it takes tokens of 1 to {WIDEST} channels, got {tuple(q.shape)} and {tuple(v.shape)}"
    return lack_of_room(q, WIDE_BYTES) if max(c, e) > WIDE else ""


def _by_tiles(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    key_blocks: Listed,
    **rules: Any,
) -> Float[Tensor, "b h n e"]:
    with without_autocast(q):
        return operator.forward(q, k, v, None, *planned(q, key_blocks, **rules))[0]


def planned(
    q: Float[Tensor, "b h n c"],
    key_blocks: Listed,
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    global_keys: Int[Tensor, "_b _h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
    cache_key: Hashable | None = None,
) -> tuple[Any, ...]:
    """The arguments of the Triton operators besides queries, keys and values."""
    n, device = q.shape[2], q.device
    before, after = key_blocks if isinstance(key_blocks, tuple) else (0, 0)

    def make() -> Plan:
        lists = key_blocks if isinstance(key_blocks, tuple) else without_repeats(_listed(key_blocks, q, block))
        rules = {"block": block, "reach": reach, "causal": causal, "global_keys": global_keys, "key_mask": key_mask}
        return make_plan(n, lists, **rules, device=device)

    if key_mask is None and cache_key is not None:
        plan = cached_plan(cache_key, (block, before, after, reach, causal, *q.shape[:3], device), make)
    else:
        plan = make()
    far = n if reach is None or reach > n else reach
    return *plan, block, before, after, far, causal


def _listed(key_blocks: Listed, q: Float[Tensor, "b h n c"], block: int) -> Int[Tensor, "_b _h g s"]:
    """The lists as a tensor."""
    if not isinstance(key_blocks, tuple):
        return key_blocks() if callable(key_blocks) else key_blocks
    before, after = key_blocks
    around = torch.arange(-before, after + 1, device=q.device)
    return (torch.arange(-(-q.shape[2] // block), device=q.device)[:, None] + around)[None, None]


__all__ = [
    "block_sparse",
    "gather_blocks",
    "overlapping_blocks",
    "packed_sliding_window",
    "planned",
    "sample_without_replacement",
    "sliding_window",
    "strided",
    "with_global_queries",
    "without_repeats",
]
