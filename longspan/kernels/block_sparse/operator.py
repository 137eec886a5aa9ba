"""Block-sparse attention as a torch operator; FLOPs are counted from the plan, so skipped tiles are not counted."""

from typing import Any

import torch
from torch import Tensor

from longspan.kernels.block_sparse.plan import (
    CHUNK,
    Plan,
    Rules,
    computed_pairs,
    distance_of,
    tile_of_queries,
    tile_side,
)
from longspan.kernels.flops import counts
from longspan.kernels.launch import ceil, empty_like, readable
from longspan.kernels.operator import differentiate, like, operator


@operator("block_sparse", fake=lambda q, k, v, *rest: _outputs(q, v))
def forward(
    q: Tensor, k: Tensor, v: Tensor, terms: Tensor | None,
    positions: Tensor | None, chunk_max: Tensor | None, key_tiles: Tensor | None, key_counts: Tensor | None,
    query_tiles: Tensor | None, query_starts: Tensor | None,
    global_keys: Tensor | None, global_max: Tensor | None, global_counts: Tensor | None,
    block: int, before: int, after: int, reach: int, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, and the log-sum-exps (base 2) for the backward pass, padded to whole chunks.

    `terms` [b h n l] are those of the labels (`labels.py`), if any.
    """
    from longspan.kernels.block_sparse import triton

    plan = Plan(
        positions, chunk_max, key_tiles, key_counts, query_tiles, query_starts, global_keys, global_max, global_counts
    )
    q, k, v = map(readable, (q, k, v))
    terms = None if terms is None else readable(terms)
    y, lse = _outputs(q, v)
    apart, rules = _take(k, v, global_keys), Rules(block, before, after, reach, causal)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.forward(q, k, v, terms, apart, plan, rules, y, lse)
    return y, lse


@operator("block_sparse_backward", fake=lambda dy, y, lse, q, k, v, terms, *rest: _gradients(q, k, v, terms))
def backward(
    dy: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, terms: Tensor | None,
    positions: Tensor | None, chunk_max: Tensor | None, key_tiles: Tensor | None, key_counts: Tensor | None,
    query_tiles: Tensor | None, query_starts: Tensor | None,
    global_keys: Tensor | None, global_max: Tensor | None, global_counts: Tensor | None,
    block: int, before: int, after: int, reach: int, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and terms, the last one empty without terms."""
    from longspan.kernels.block_sparse import triton

    plan = Plan(
        positions, chunk_max, key_tiles, key_counts, query_tiles, query_starts, global_keys, global_max, global_counts
    )
    dy, q, k, v, y = map(readable, (dy, q, k, v, y))
    terms = None if terms is None else readable(terms)
    apart, rules = _take(k, v, global_keys), Rules(block, before, after, reach, causal)
    dq, dk, dv, d_terms = _gradients(q, k, v, terms)
    filled = None if terms is None else d_terms.zero_()  # for labels that no pair has
    with torch.cuda.device_of(q):
        triton.backward(dy, q, k, v, terms, apart, plan, rules, y, lse.contiguous(), dq, dk, dv, filled)
    return dq, dk, dv, d_terms


differentiate(forward, backward)


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    b, h, n, _ = q.shape
    lse = q.new_empty(b, h, ceil(n, CHUNK) * CHUNK, dtype=torch.float32)
    return empty_like(q, v.shape[3], v.dtype), lse


def _gradients(q: Tensor, k: Tensor, v: Tensor, terms: Tensor | None) -> tuple[Tensor, ...]:
    return *like(q, k, v), q.new_empty(0) if terms is None else like(terms)[0]


def _take(k: Tensor, v: Tensor, global_keys: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Keys and values at these positions, arbitrary where there is none."""
    if global_keys is None:
        return None
    b, h, n, _ = k.shape
    index = global_keys.clamp(max=n - 1).long().expand(b, h, -1)[..., None]
    k_global, v_global = (x.gather(2, index.expand(-1, -1, -1, x.shape[3])) for x in (k, v))
    return k_global, v_global


def _forward_flops(q: Tensor, k: Tensor, v: Tensor, terms: Tensor | None, *rest: Any, out_val: Any = None) -> int:
    """Two products for every pair of a query and a key."""
    plan, rules = Plan(*rest[:9]), Rules(*rest[9:])
    side = tile_side(rules.block, plan.key_tiles is not None)
    pairs = computed_pairs(q, plan, rules, tile_of_queries(side, distance_of(terms)))
    return 2 * pairs * (q.shape[3] + v.shape[3])


def _backward_flops(
    dy: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, terms: Tensor | None, *rest: Any,
    out_val: Any = None,
) -> int:  # fmt: skip
    """Three products in the pass over queries and four in the one over keys, which computes as many pairs."""
    pairs = computed_pairs(q, Plan(*rest[:9]), Rules(*rest[9:]), CHUNK)
    return 2 * pairs * (4 * q.shape[3] + 3 * v.shape[3])


for _operation, _formula in (("block_sparse", _forward_flops), ("block_sparse_backward", _backward_flops)):
    _formula._get_raw = True  # pyright: ignore[reportFunctionMemberAccess]  # it gets tensors instead of shapes
    counts(getattr(torch.ops.longspan, _operation))(_formula)
