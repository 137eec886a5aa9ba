"""Exact attention within a neighbourhood, in time and memory linear in the length.

    banded    query i sees the keys i - left ... i + right
    blocked   query i sees its own block of keys, and `overlap` keys on either side of the block

Both cut the queries into blocks and hand each block the few keys that any of its queries may see; the relation between
the places in a block and the places in its keys is the same for every block. `reference.py` is the law; `gather`, in
this file, copies the keys of each block. On a GPU the kernel of block-sparse attention takes both. Torch's fused kernel
takes bands without hidden keys where that one does not, as with dropout, and those of wide heads.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels import fused
from longspan.kernels.banded import reference
from longspan.kernels.block_sparse import block_sparse, tiled
from longspan.kernels.masked import masked_attention

Impl = Literal["auto", "reference", "gather"]
BLOCK = 64  # queries per block of a narrow band: a tile of the fused kernels


def banded(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    left: int,
    right: int,
    key_mask: Bool[Tensor, "b n"] | None = None,
    places: Int[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention of query i over the real keys i - left ... i + right; a row without any gives 0.

    `places` says where the tokens stand if not at 0, 1, 2..., in rising order. Rows that are packed one after another
    are kept apart by standing far apart.
    """
    if impl == "reference":
        return reference.banded(q, k, v, left=left, right=right, key_mask=key_mask, places=places)
    n = q.shape[2]
    assert places is None or places.shape[1] == n  # also says to a compiler that both are one number
    sides = left, right
    # by comparing: min() would stay a formula in a graph compiled for any length
    left, right = (side if side < n else n - 1 for side in sides)
    plain = impl == "auto" and places is None
    by_tiles = plain and tiled.is_faster(q, v, (left, right), 1, dropout)
    by_torch = plain and key_mask is None and fused.fits(q, v) and not fused.is_counted()
    if by_torch and not (by_tiles and q.shape[3] <= tiled.WIDE):
        return fused.in_band(q, k, v, left=left, right=right, dropout=dropout)
    if by_tiles:
        return block_sparse(q, k, v, (left, right), block=1, key_mask=key_mask, pattern="banded", impl="triton")
    block = max(BLOCK, left + right)  # at most twice the keys that are needed
    block = block if block < n else n
    place, key = _places(q, block, left + block + right)
    lag = key - left - place
    near = (lag >= -left) & (lag <= right)
    if places is None:
        return _by_block(q, k, v, near, left, key_mask, dropout)
    near = near & _standing_near(places, sides, left, *near.shape)  # few tokens may still stand far apart
    return _by_block(q, k, v, near, left, key_mask, dropout)


def blocked(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    *,
    block: int,
    overlap: int = 0,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention within consecutive blocks, each widened by `overlap` keys to the left and to the right."""
    if impl == "reference":
        return reference.blocked(q, k, v, block=block, overlap=overlap, causal=causal, key_mask=key_mask)
    n = q.shape[2]
    block, overlap = (size if size < n else n for size in (block, overlap))
    around = overlap // block, overlap // block
    if impl == "auto" and overlap % block == 0 and tiled.is_faster(q, v, around, block, dropout):
        rules = {"causal": causal, "key_mask": key_mask, "pattern": "blocked"}
        return block_sparse(q, k, v, around, block=block, **rules, impl="triton")
    place, key = _places(q, block, overlap + block + overlap)
    near = key - overlap <= place if causal else torch.ones_like(key - place, dtype=torch.bool)
    return _by_block(q, k, v, near, overlap, key_mask, dropout)


def _places(q: Tensor, block: int, span: int) -> tuple[Tensor, Tensor]:
    return torch.arange(block, device=q.device)[:, None], torch.arange(span, device=q.device)[None, :]


def _standing_near(
    places: Int[Tensor, "b n"], sides: tuple[int, int], before: int, block: int, span: int
) -> Bool[Tensor, "b_g 1 block span"]:
    """Which keys of its block, whose first is `before` tokens earlier, stand near enough to each query."""
    blocks = -(-places.shape[1] // block)
    missing = blocks * block - places.shape[1]
    at = rearrange(F.pad(places, (0, missing)), "b (g s) -> (b g) 1 s 1", s=block)
    keys = F.pad(places, (before, missing + span - block - before)).unfold(1, span, block)
    lag = rearrange(keys, "b g s -> (b g) 1 1 s") - at
    return (lag >= -sides[0]) & (lag <= sides[1])


def _by_block(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    near: Bool[Tensor, "*#b_g block span"],
    before: int,
    key_mask: Bool[Tensor, "b n"] | None,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    """Block g holds the queries from g * block on; its keys begin `before` places earlier."""
    n, (block, span) = q.shape[2], near.shape[-2:]
    blocks = -(-n // block)
    missing = blocks * block - n
    after = missing + span - block - before
    real = q.new_ones(q.shape[0], n, dtype=torch.bool) if key_mask is None else key_mask
    real = F.pad(real, (before, after), value=False).unfold(1, span, block)
    # Contiguous first, as in kernels/filling.py: a compiled graph for any length takes the result to be so.
    q = rearrange(F.pad(q.contiguous(), (0, 0, 0, missing)), "b h (g s) c -> (b g) h s c", s=block)
    k, v = (F.pad(u.contiguous(), (0, 0, before, after)).unfold(2, span, block) for u in (k, v))
    k, v = (rearrange(u, "b h g c s -> (b g) h s c") for u in (k, v))
    visible = repeat(real, "b g s -> (b g) 1 block s", block=block) & near
    y = masked_attention(q, k, v, visible, dropout=dropout)
    return rearrange(y, "(b g) h s e -> b h (g s) e", g=blocks)[:, :, :n]
