"""Block-sparse attention in Triton: a tile of queries goes through the chunks of keys it sees, then the global keys.

    forward    s_ij = q_i . k_j / sqrt(c)      lse_i = log sum_j exp s_ij      p_ij = exp(s_ij - lse_i)
               y_i = sum_j p_ij v_j
    backward   ds_ij = p_ij (dy_i . v_j - delta_i) / sqrt(c)      delta_i = dy_i . y_i
               dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

With labels (`labels.py`) t_i,l(i,j) is added to s_ij, and dt_il = sqrt(c) sum_j ds_ij over the j of label l. A chunk of
keys that all lie DISTANCE or farther from all queries of a tile has one label, as global keys do; only near the
diagonal does each pair look up its own. There a label belongs to one pair of a query, whose gradient is stored
directly; the gradients of the farthest labels and of global keys are summed in registers.

Keys lie between two bounds that increase with the query, or in listed tiles; global keys are first copied side by side.
A chunk that all queries of a tile see as a whole is not masked. The backward pass has two kernels: dq for each tile of
queries, dk and dv for each tile of keys. Since a global key is seen by every query, its queries are split among
programs, whose partial sums are added in a fixed order: deterministic. Scores and sums are in float32, exponentials and
lse in base 2; tiles of half precision are multiplied by tensor cores.
"""

from typing import Literal, no_type_check  # Triton functions are not Python functions, nor are their annotations types

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.block_sparse.plan import CHUNK, Plan, Rules, distance_of, global_chunk, tile_of_queries, tile_side
from longspan.kernels.launch import ceil, next_power_of_2
from longspan.kernels.tiles import dot, load, store

PROGRAMS = 1024  # among which the queries of all global keys are split, if there are enough
SHORTEST = 4 * CHUNK  # queries of such a part
LOW = tl.constexpr(-1e30)  # below every score, and finite
LOG2E = tl.constexpr(1.4426950408889634)

KeysValues = tuple[Float[Tensor, "b h t c"], Float[Tensor, "b h t e"]]


def forward(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    terms: Float[Tensor, "b h n l"] | None,
    apart: KeysValues | None,
    plan: Plan,
    rules: Rules,
    y: Float[Tensor, "b h n e"],
    lse: Float[Tensor, "b h padded"],
) -> None:
    """Fill in y and lse; `apart` are the global keys and values."""
    k_global, v_global = apart or (k, v)
    tensors = {"q": q, "k": k, "v": v, "k_global": k_global, "v_global": v_global, "y": y}
    tensors |= {"terms": q if terms is None else terms}
    sizes = launch(q, v, plan, rules, "forward", distance_of(terms))
    _forward[_grid(q, sizes)](**tensors, lse=lse, **_numbers(q, plan, rules), **_strides(tensors), **sizes)


def backward(
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    terms: Float[Tensor, "b h n l"] | None,
    apart: KeysValues | None,
    plan: Plan,
    rules: Rules,
    y: Float[Tensor, "b h n e"],
    lse: Float[Tensor, "b h padded"],
    dq: Float[Tensor, "b h n c"],
    dk: Float[Tensor, "b h n c"],
    dv: Float[Tensor, "b h n e"],
    d_terms: Float[Tensor, "b h n l"] | None,
) -> None:
    """Fill in dq and d_terms, which starts at 0; then dk and dv, first for keys in blocks, where global keys get 0,
    then for the global keys."""
    (b, h, n), sizes = q.shape[:3], launch(q, v, plan, rules, "backward", distance_of(terms))
    labels = {"terms": q if terms is None else terms, "d_terms": q if d_terms is None else d_terms}
    numbers = {"lse": lse, "delta": torch.empty_like(lse), **_numbers(q, plan, rules)}
    k_global, v_global = apart or (k, v)
    tensors = {"dy": dy, "q": q, "k": k, "v": v, "k_global": k_global, "v_global": v_global, "y": y, "dq": dq} | labels
    _backward_queries[_grid(q, sizes)](**tensors, **numbers, **_strides(tensors), **sizes)
    tensors = {"dy": dy, "q": q, "k": k, "v": v, "terms": labels["terms"], "dk": dk, "dv": dv}
    _backward_keys[_grid(q, sizes)](**tensors, **numbers, keys=n, share=n, **_strides(tensors), GLOBAL=False, **sizes)
    if apart is None:
        return
    t = k_global.shape[2]
    sizes |= {"T": (tile := global_chunk(t)), "LISTED": False}
    parts = max(1, min(ceil(PROGRAMS, b * h * t // tile), ceil(n, SHORTEST)))
    share = ceil(n, parts * CHUNK) * CHUNK
    dk_parts, dv_parts = (x.new_empty(parts * b, h, t, x.shape[3], dtype=torch.float32) for x in apart)
    tensors |= {"k": k_global, "v": v_global, "dk": dk_parts, "dv": dv_parts}
    grid, numbers = (t // tile, b * h, parts), numbers | {"block": n, "before": 0, "after": 0, "reach": n}
    _backward_keys[grid](**tensors, **numbers, keys=t, share=share, **_strides(tensors), GLOBAL=True, **sizes)
    numbers = {name: numbers[name] for name in ("global_keys", "heads", "n", "row_step", "head_step")}
    tensors = {"dk_parts": dk_parts, "dv_parts": dv_parts, "dk": dk, "dv": dv}
    sizes = {name: sizes[name] for name in ("c", "e", "C", "E", "T")}
    _add_parts[grid[:2]](**tensors, **numbers, parts=parts, keys=t, **_strides({"dk": dk, "dv": dv}), **sizes)


def launch(
    q: Tensor, v: Tensor, plan: Plan, rules: Rules, direction: Literal["forward", "backward"], distance: int = 0
) -> dict:
    """Widths and the powers of two they are padded to, sides of tiles, what the plan holds, warps and stages."""
    c, e, side = q.shape[3], v.shape[3], tile_side(rules.block, plan.key_tiles is not None)
    C, E = next_power_of_2(c), next_power_of_2(e)
    wide, single = max(C, E) > 64, q.element_size() > 2
    t = 0 if plan.global_keys is None else plan.global_keys.shape[2]
    sizes = {"c": c, "e": e, "C": C, "E": E, "S": CHUNK, "SIDE": side}
    sizes |= {"GLOBAL_CHUNK": min(CHUNK, global_chunk(t)) if t else 0}
    sizes |= {"HIDDEN": plan.positions is not None, "LISTED": plan.key_tiles is not None, "CAUSAL": rules.causal}
    sizes |= {"DISTANCE": distance}
    # The backward pass and labels hold twice as much in registers; float32 leaves no room for further chunks in flight.
    tile = tile_of_queries(side, distance) if direction == "forward" else CHUNK
    stages = 1 if single else (2 if wide or distance else 3)
    return sizes | {"T": tile, "num_warps": 8 if wide else 4, "num_stages": stages}


def _grid(q: Tensor, sizes: dict) -> tuple[int, int]:
    return ceil(q.shape[2], sizes["T"]), q.shape[0] * q.shape[1]


def _numbers(q: Tensor, plan: Plan, rules: Rules) -> dict:
    """Plan and rules, a dummy tensor in place of what the plan does not hold, and the strides of its rows and heads."""
    n, (block, before, after, reach, _) = q.shape[2], rules
    if plan.key_tiles is not None:  # which already describe the blocks
        block, before, after = n, 0, 0
    first = next((part for part in plan if part is not None), None)
    rows, heads = (1, 1) if first is None else first.shape[:2]
    unread = q if first is None else first
    parts = {name: unread if part is None else part for name, part in plan._asdict().items()}
    parts |= {"row_step": heads if rows > 1 else 0, "head_step": 1 if heads > 1 else 0}
    parts |= {"global_count": 0 if plan.global_keys is None else plan.global_keys.shape[2]}
    parts |= {"width": 0 if plan.key_tiles is None else plan.key_tiles.shape[3], "heads": q.shape[1], "n": n}
    return parts | {"block": block, "before": before, "after": after, "reach": reach, "scale": q.shape[3] ** -0.5}


def _strides(tensors: dict[str, Tensor]) -> dict[str, int]:
    return {f"{name}_{axis}": x.stride(place) for name, x in tensors.items() for place, axis in enumerate("bht")}


@triton.jit
@no_type_check
def _forward(
    q, k, v, terms, k_global, v_global, y, lse, positions, chunk_max, key_tiles, key_counts, query_tiles, query_starts,
    global_keys, global_max, global_counts, row_step, head_step, global_count, width, heads, n, block, before, after,
    reach, scale, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, terms_b, terms_h, terms_t, k_global_b, k_global_h,
    k_global_t, v_global_b, v_global_h, v_global_t, y_b, y_h, y_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr,
    E: tl.constexpr, T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, GLOBAL_CHUNK: tl.constexpr,
    HIDDEN: tl.constexpr, LISTED: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr,
):  # fmt: skip
    pair, tile, row, head, own = _program(heads, row_step, head_step, CAUSAL)
    first = tile * T
    queries = _load(q + row * q_b + head * q_h, first, q_t, n, c, C, T)
    scale_2 = scale * LOG2E
    terms, offset = _rows(terms + row * terms_b + head * terms_h, first, terms_t, n, T)
    top, total, acc = tl.full([T], LOW, tl.float32), tl.zeros([T], tl.float32), tl.zeros([T, E], tl.float32)

    low, high, lowest, highest, begin, stop = _block_range(
        first, n, block, before, after, reach, key_counts, own, T, S, SIDE, LISTED, CAUSAL
    )
    top, total, acc = _attend(
        top, total, acc, queries, k + row * k_b + head * k_h, v + row * v_b + head * v_h, k_t, v_t, n,
        positions + own * _round_up(n, SIDE), chunk_max + own * (_round_up(n, SIDE) // S),
        key_tiles + (own * tl.cdiv(n, SIDE) + first // SIDE) * width, begin, stop, low, high, lowest, highest, scale_2,
        terms, offset, first, c, e, C, E, S, SIDE // S, HIDDEN, LISTED, DISTANCE, False,
    )  # fmt: skip
    if GLOBAL_CHUNK:
        low, high, lowest, highest, begin, stop = _global_range(first, n, global_counts, own, T, S, CAUSAL)
        top, total, acc = _attend(
            top, total, acc, queries, k_global + row * k_global_b + head * k_global_h,
            v_global + row * v_global_b + head * v_global_h, k_global_t, v_global_t, global_count,
            global_keys + own * global_count, global_max + own * (global_count // GLOBAL_CHUNK), key_tiles, begin, stop,
            low, high, lowest, highest, scale_2, terms, offset, first, c, e, C, E, GLOBAL_CHUNK, 1, True, False,
            DISTANCE, True,
        )  # fmt: skip

    i, blind = first + tl.arange(0, T), total == 0
    top, total = tl.where(blind, 0.0, top), tl.where(blind, 1.0, total)  # so that y is 0 and nothing is infinite
    store(y + row * y_b + head * y_h, acc / total[:, None], i, y_t, i < n, e, E)
    tl.store(lse + pair * _round_up(n, S) + i, top + tl.log2(total), mask=i < _round_up(n, S))


@triton.jit
@no_type_check
def _attend(
    top, total, acc, queries, k, v, k_t, v_t, end, positions, chunk_max, tiles, begin, stop, low, high, lowest, highest,
    scale, terms, offset, first, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, S: tl.constexpr,
    PER: tl.constexpr, HIDDEN: tl.constexpr, LISTED: tl.constexpr, DISTANCE: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """The online softmax over these chunks of keys."""
    T: tl.constexpr = queries.shape[0]
    for turn in range(begin, stop):
        chunk = _chunk(turn, tiles, PER, LISTED)
        start = chunk * S
        keys, values = _load(k, start, k_t, end, c, C, S), _load(v, start, v_t, end, e, E, S)
        s, unit = _scores(queries, keys), scale  # [T, S]
        if DISTANCE:
            lag, least, greatest = _lags(first, start, T, S)
            s, unit = _labelled(s * scale, terms, offset[:, None], lag, least, greatest, DISTANCE, GLOBAL), 1.0
        s = _hide(s, float("-inf"), chunk, positions, chunk_max, low, high, lowest, highest, S, HIDDEN)
        most = tl.maximum(top, tl.max(s, axis=1) * unit)
        p, fade = tl.exp2(s * unit - most[:, None]), tl.exp2(top - most)
        top, total = most, total * fade + tl.sum(p, axis=1)
        acc = dot(p.to(values.dtype), values, acc * fade[:, None])
    return top, total, acc


@triton.jit
@no_type_check
def _backward_queries(
    dy, q, k, v, terms, k_global, v_global, y, lse, delta, dq, d_terms, positions, chunk_max, key_tiles, key_counts,
    query_tiles, query_starts, global_keys, global_max, global_counts, row_step, head_step, global_count, width, heads,
    n, block, before, after, reach, scale, dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, terms_b,
    terms_h, terms_t, k_global_b, k_global_h, k_global_t, v_global_b, v_global_h, v_global_t, y_b, y_h, y_t, dq_b, dq_h,
    dq_t, d_terms_b, d_terms_h, d_terms_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, GLOBAL_CHUNK: tl.constexpr, HIDDEN: tl.constexpr,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr,
):  # fmt: skip
    pair, tile, row, head, own = _program(heads, row_step, head_step, CAUSAL)
    first = tile * T
    queries = _load(q + row * q_b + head * q_h, first, q_t, n, c, C, T)
    grads = _load(dy + row * dy_b + head * dy_h, first, dy_t, n, e, E, T)
    outputs = _load(y + row * y_b + head * y_h, first, y_t, n, e, E, T)
    i = first + tl.arange(0, T)
    d = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), axis=1)  # [T]
    tl.store(delta + pair * _round_up(n, S) + i, d, mask=i < _round_up(n, S))
    row_lse = tl.load(lse + pair * _round_up(n, S) + i, mask=i < _round_up(n, S), other=0.0)
    scale_2 = scale * LOG2E
    terms, offset = _rows(terms + row * terms_b + head * terms_h, first, terms_t, n, T)
    d_terms, d_offset = _rows(d_terms + row * d_terms_b + head * d_terms_h, first, d_terms_t, n, T)
    acc, none = tl.zeros([T, C], tl.float32), tl.zeros([T], tl.float32)

    low, high, lowest, highest, begin, stop = _block_range(
        first, n, block, before, after, reach, key_counts, own, T, S, SIDE, LISTED, CAUSAL
    )
    acc, ahead, behind = _attend_backward(
        acc, none, none, queries, grads, d, row_lse, k + row * k_b + head * k_h, v + row * v_b + head * v_h, k_t, v_t,
        n, positions + own * _round_up(n, SIDE), chunk_max + own * (_round_up(n, SIDE) // S),
        key_tiles + (own * tl.cdiv(n, SIDE) + first // SIDE) * width, begin, stop, low, high, lowest, highest, scale_2,
        terms, offset, d_terms, d_offset, first, n, c, e, C, E, S, SIDE // S, HIDDEN, LISTED, DISTANCE, False,
    )  # fmt: skip
    if GLOBAL_CHUNK:
        low, high, lowest, highest, begin, stop = _global_range(first, n, global_counts, own, T, S, CAUSAL)
        acc, everywhere, _ = _attend_backward(
            acc, none, none, queries, grads, d, row_lse, k_global + row * k_global_b + head * k_global_h,
            v_global + row * v_global_b + head * v_global_h, k_global_t, v_global_t, global_count,
            global_keys + own * global_count, global_max + own * (global_count // GLOBAL_CHUNK), key_tiles, begin, stop,
            low, high, lowest, highest, scale_2, terms, offset, d_terms, d_offset, first, n, c, e, C, E, GLOBAL_CHUNK,
            1, True, False, DISTANCE, True,
        )  # fmt: skip
        if DISTANCE:
            tl.store(d_terms + (d_offset + (2 * DISTANCE + 1)), everywhere.to(d_terms.dtype.element_ty), mask=i < n)
    if DISTANCE:
        tl.store(d_terms + (d_offset + DISTANCE), ahead.to(d_terms.dtype.element_ty), mask=i < n)
        tl.store(d_terms + (d_offset + 2 * DISTANCE), behind.to(d_terms.dtype.element_ty), mask=i < n)
    store(dq + row * dq_b + head * dq_h, acc * scale, i, dq_t, i < n, c, C)


@triton.jit
@no_type_check
def _attend_backward(
    acc, ahead, behind, queries, grads, d, lse, k, v, k_t, v_t, end, positions, chunk_max, tiles, begin, stop, low,
    high, lowest, highest, scale, terms, offset, d_terms, d_offset, first, n, c: tl.constexpr, e: tl.constexpr,
    C: tl.constexpr, E: tl.constexpr, S: tl.constexpr, PER: tl.constexpr, HIDDEN: tl.constexpr, LISTED: tl.constexpr,
    DISTANCE: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """dq, and ds of keys far ahead (or global) and far behind, summed over these chunks of keys."""
    T: tl.constexpr = queries.shape[0]
    for turn in range(begin, stop):
        chunk = _chunk(turn, tiles, PER, LISTED)
        start = chunk * S
        keys, values = _load(k, start, k_t, end, c, C, S), _load(v, start, v_t, end, e, E, S)
        s, unit = _scores(queries, keys), scale  # [T, S]
        if DISTANCE:
            lag, least, greatest = _lags(first, start, T, S)
            s, unit = _labelled(s * scale, terms, offset[:, None], lag, least, greatest, DISTANCE, GLOBAL), 1.0
        p = tl.exp2(s * unit - lse[:, None])
        p = _hide(p, 0.0, chunk, positions, chunk_max, low, high, lowest, highest, S, HIDDEN)
        ds = p * (_scores(grads, values) - d[:, None])
        acc = dot(ds.to(keys.dtype), keys, acc)
        if DISTANCE:
            if GLOBAL | (least >= DISTANCE):
                ahead += tl.sum(ds, axis=1)
            elif greatest <= -DISTANCE:
                behind += tl.sum(ds, axis=1)
            else:
                ahead += tl.sum(tl.where(lag >= DISTANCE, ds, 0.0), axis=1)
                behind += tl.sum(tl.where(lag <= -DISTANCE, ds, 0.0), axis=1)
                alone = (lag < DISTANCE) & (lag > -DISTANCE) & (first + tl.arange(0, T) < n)[:, None]
                at = d_terms + (d_offset[:, None] + _label(lag, DISTANCE))
                tl.store(at, ds.to(d_terms.dtype.element_ty), mask=alone)
    return acc, ahead, behind


@triton.jit
@no_type_check
def _backward_keys(
    dy, q, k, v, terms, lse, delta, dk, dv, positions, chunk_max, key_tiles, key_counts, query_tiles, query_starts,
    global_keys, global_max, global_counts, row_step, head_step, global_count, width, heads, n, block, before, after,
    reach, scale, keys, share, dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, terms_b, terms_h, terms_t,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, GLOBAL_CHUNK: tl.constexpr, HIDDEN: tl.constexpr,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr, DISTANCE: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """A tile of keys with the tiles of queries that see it, or one of global keys with a share of all queries."""
    pair, tile, row, head, own = _program(heads, row_step, head_step, False)
    start = tile * T
    ones = _load(k + row * k_b + head * k_h, start, k_t, keys, c, C, T)
    values = _load(v + row * v_b + head * v_h, start, v_t, keys, e, E, T)
    position = start + tl.arange(0, T)
    if GLOBAL:
        position = tl.load(global_keys + own * keys + position)
    elif HIDDEN:
        position = tl.load(positions + own * _round_up(n, SIDE) + position)
    # A block that sees this many before and after itself is seen by as many after and before itself.
    low, high = _bounds(position, n, reach, block, after, before, False)
    if CAUSAL:
        low = tl.maximum(low, position)
    low, high = tl.where(position < n, low, n), tl.where(position < n, high, -1)  # no query sees the others
    lowest, highest = tl.max(low, axis=0), tl.min(high, axis=0)
    if LISTED:
        at = query_starts + own * (tl.cdiv(n, SIDE) + 1) + start // SIDE
        begin, stop = tl.load(at) * (SIDE // S), tl.load(at + 1) * (SIDE // S)
    else:
        begin, stop = tl.maximum(tl.min(low, axis=0), 0), tl.max(high, axis=0) + 1
        if GLOBAL:
            begin = tl.maximum(begin, tl.program_id(2) * share)
            stop = tl.minimum(stop, (tl.program_id(2) + 1) * share)
        begin, stop = begin // S, tl.cdiv(stop, S)
    scale_2 = scale * LOG2E
    q, dy = q + row * q_b + head * q_h, dy + row * dy_b + head * dy_h
    terms += row * terms_b + head * terms_h
    lse, delta = lse + pair * _round_up(n, S), delta + pair * _round_up(n, S)
    query_tiles = query_tiles + own * (tl.cdiv(n, SIDE) * width)
    acc_k, acc_v = tl.zeros([T, C], tl.float32), tl.zeros([T, E], tl.float32)
    for turn in range(begin, stop):
        first = _chunk(turn, query_tiles, SIDE // S, LISTED) * S
        i = first + tl.arange(0, S)
        queries, grads = _load(q, first, q_t, n, c, C, S), _load(dy, first, dy_t, n, e, E, S)
        real = first < n  # the second half of the last tile may not exist
        row_lse, d = tl.load(lse + i, mask=real, other=0.0), tl.load(delta + i, mask=real, other=0.0)
        s, unit = _scores(ones, queries), scale_2  # [T, S], keys by queries
        if DISTANCE:
            lag = (start + tl.arange(0, T))[:, None] - i[None, :]
            least, greatest = start - first - S + 1, start - first + T - 1
            those, offset = _rows(terms, first, terms_t, n, S)
            s, unit = _labelled(s * scale_2, those, offset[None, :], lag, least, greatest, DISTANCE, GLOBAL), 1.0
        p = tl.exp2(s * unit - row_lse[None, :])
        if (first < lowest) | (first + S - 1 > highest):
            p = tl.where((i[None, :] >= low[:, None]) & (i[None, :] <= high[:, None]), p, 0.0)
        acc_v = dot(p.to(grads.dtype), grads, acc_v)
        ds = p * (_scores(values, grads) - d[None, :])
        acc_k = dot(ds.to(queries.dtype), queries, acc_k)
    if GLOBAL:
        row += tl.program_id(2) * (tl.num_programs(1) // heads)
    rows = start + tl.arange(0, T)
    store(dk + row * dk_b + head * dk_h, acc_k * scale, rows, dk_t, rows < keys, c, C)
    store(dv + row * dv_b + head * dv_h, acc_v, rows, dv_t, rows < keys, e, E)


@triton.jit
@no_type_check
def _add_parts(
    dk_parts, dv_parts, dk, dv, global_keys, heads, n, row_step, head_step, parts, keys, dk_b, dk_h, dk_t, dv_b, dv_h,
    dv_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of global keys, summed over the parts and stored at their positions."""
    pair, tile, row, head, own = _program(heads, row_step, head_step, False)
    acc_k, acc_v = tl.zeros([T, C], tl.float32), tl.zeros([T, E], tl.float32)
    for part in range(parts):
        at = (part * tl.num_programs(1) + pair) * keys
        acc_k += _load(dk_parts + at * c, tile * T, c, keys, c, C, T)
        acc_v += _load(dv_parts + at * e, tile * T, e, keys, e, E, T)
    position = tl.load(global_keys + own * keys + tile * T + tl.arange(0, T))
    store(dk + row * dk_b + head * dk_h, acc_k, position, dk_t, position < n, c, C)
    store(dv + row * dv_b + head * dv_h, acc_v, position, dv_t, position < n, e, E)


@triton.jit
@no_type_check
def _program(heads, row_step, head_step, LAST_FIRST: tl.constexpr):
    """The pair of row and head, the tile, row and head, and which part of the plan is theirs; the last tiles of queries
    start first in the causal form, where they see most global keys."""
    pair, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    row, head = pair // heads, pair % heads
    return pair, tile, row, head, row * row_step + head * head_step


@triton.jit
@no_type_check
def _bounds(i, n, reach, block, before, after, CAUSAL: tl.constexpr):
    """The first and the last position that the query at i sees in its blocks; both rise with i."""
    low = tl.maximum(i - reach, (i // block - before) * block)
    high = tl.minimum(tl.minimum(i + reach, (i // block + after + 1) * block - 1), n - 1)
    if CAUSAL:
        high = tl.minimum(high, i)
    return low, high


@triton.jit
@no_type_check
def _block_range(
    first, n, block, before, after, reach, key_counts, own, T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Bounds of each query of a tile, bounds that all of them share, and the iterations over what any of them sees."""
    low, high = _bounds(first + tl.arange(0, T), n, reach, block, before, after, CAUSAL)
    begin, highest = _bounds(first, n, reach, block, before, after, CAUSAL)
    lowest, stop = _bounds(tl.minimum(first + T, n) - 1, n, reach, block, before, after, CAUSAL)
    if LISTED:
        begin, stop = 0, tl.load(key_counts + own * tl.cdiv(n, SIDE) + first // SIDE) * (SIDE // S)
    else:
        begin, stop = tl.maximum(begin, 0) // S, (stop + S) // S
    return low, high, lowest, highest, begin, stop


@triton.jit
@no_type_check
def _global_range(first, n, global_counts, own, T: tl.constexpr, S: tl.constexpr, CAUSAL: tl.constexpr):
    """The same for global keys, which are seen from any distance."""
    low, high = _bounds(first + tl.arange(0, T), n, n, n, 0, 0, CAUSAL)
    _, highest = _bounds(first, n, n, n, 0, 0, CAUSAL)
    last = tl.minimum(first + T, n) - 1
    return low, high, 0, highest, 0, tl.load(global_counts + own * tl.cdiv(n, S) + last // S)


@triton.jit
@no_type_check
def _chunk(turn, tiles, PER: tl.constexpr, LISTED: tl.constexpr):
    """The chunk of this iteration; a listed tile has several."""
    chunk = turn
    if LISTED:
        chunk = tl.load(tiles + turn // PER) * PER + turn % PER
    return chunk


@triton.jit
@no_type_check
def _hide(
    x, instead: tl.constexpr, chunk, positions, chunk_max, low, high, lowest, highest, S: tl.constexpr,
    HIDDEN: tl.constexpr,
):  # fmt: skip
    """x [T, S] with `instead` for pairs that are not seen, unless all queries of the tile see the chunk as a whole."""
    start = chunk * S
    last = start + S - 1
    if HIDDEN:
        last = tl.load(chunk_max + chunk)
    if (start < lowest) | (last > highest):
        position = start + tl.arange(0, S)
        if HIDDEN:
            position = tl.load(positions + position)
        seen = (position[None, :] >= low[:, None]) & (position[None, :] <= high[:, None])
        x = tl.where(seen, x, instead)
    return x


@triton.jit
@no_type_check
def _rows(terms, first, stride, n, T: tl.constexpr):
    """Where the terms of the query at `first` begin, and the offsets from there of each query of the tile [T]."""
    return terms + tl.cast(first, tl.int64) * stride, (tl.minimum(first + tl.arange(0, T), n - 1) - first) * stride


@triton.jit
@no_type_check
def _lags(first, start, T: tl.constexpr, S: tl.constexpr):
    """How far the keys of a chunk are ahead of the queries of a tile [T, S], the least and the greatest."""
    lag = (start + tl.arange(0, S))[None, :] - (first + tl.arange(0, T))[:, None]
    return lag, start - first - T + 1, start - first + S - 1


@triton.jit
@no_type_check
def _labelled(s, terms, offset, lag, least, greatest, DISTANCE: tl.constexpr, GLOBAL: tl.constexpr):
    """Scores in base 2 plus the terms of their labels, which begin at `offset` for each query."""
    if GLOBAL:
        s += tl.load(terms + (offset + (2 * DISTANCE + 1))).to(tl.float32) * LOG2E
    elif (least >= DISTANCE) | (greatest <= -DISTANCE):
        s += tl.load(terms + (offset + tl.where(least > 0, DISTANCE, 2 * DISTANCE))).to(tl.float32) * LOG2E
    else:
        s += tl.load(terms + (offset + _label(lag, DISTANCE))).to(tl.float32) * LOG2E
    return s


@triton.jit
@no_type_check
def _label(lag, DISTANCE: tl.constexpr):
    """The label of a lag: first how far the key is ahead of the query, then how far it is behind."""
    return tl.where(lag >= 0, tl.minimum(lag, DISTANCE), tl.minimum(DISTANCE - lag, 2 * DISTANCE))


@triton.jit
@no_type_check
def _round_up(n, S: tl.constexpr):
    return tl.multiple_of(tl.cdiv(n, S) * S, S)


@triton.jit
@no_type_check
def _scores(a, b):
    return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
@no_type_check
def _load(x, start, stride, end, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    """T rows of x from `start` on, 0 from `end` on."""
    rows = start + tl.arange(0, T)
    return load(x, rows, stride, rows < end, c, C)
