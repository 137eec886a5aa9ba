"""Block-sparse attention in Triton: a tile of queries goes through the chunks of keys it sees, near ones and columns.

    forth   s_ij = q_i . k_j / sqrt(c)      z_i = log sum_j exp s_ij      p_ij = exp(s_ij - z_i)
            y_i = sum_j p_ij v_j
    back    ds_ij = p_ij (dy_i . v_j - dy_i . y_i) / sqrt(c)
            dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i      dv_j = sum_i p_ij dy_i

Near keys lie between two bounds that rise with the query, or in tiles that a list names; columns are copied together
first. A chunk that all queries of a tile see as a whole is not looked at pair by pair. On the way back one pass has a
tile of queries each and gives dq, the other a tile of keys, with the queries that see it. As everybody sees a column,
its queries are shared out among programs, whose parts are added in order. So no two runs differ. Scores and sums are in
float32, logarithms to the base of two; tiles of half precision meet in tensor cores.
"""

from typing import (  # a Triton function is no Python function, and its annotations are no types
    Literal,
    no_type_check,
)

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.block_sparse.plan import CHUNK, Plan, column_chunk, side_of
from longspan.kernels.launch import ceil, next_power_of_2
from longspan.kernels.tiles import dot

PROGRAMS = 1024  # among which the queries of all columns are shared out, if there are so many
LEAST = 4 * CHUNK  # queries of such a share
LOW = tl.constexpr(-1e30)  # below every score, and finite
LOG2E = tl.constexpr(1.4426950408889634)  # exponentials are to the base of two

Singles = tuple[Float[Tensor, "b h t c"], Float[Tensor, "b h t e"]] | None
Rules = tuple[int, int, int, int, bool]  # block, before, after, reach, causal


def forth(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    singles: Singles,
    plan: Plan,
    rules: Rules,
    y: Float[Tensor, "b h n e"],
    z: Float[Tensor, "b h filled"],
) -> None:
    """Fill in y and z."""
    k_single, v_single = singles or (k, v)
    tensors = {"q": q, "k": k, "v": v, "k_single": k_single, "v_single": v_single, "y": y}
    how = launch(q, v, plan, rules, "forth")
    _forth[_grid(q, how)](**tensors, z=z, **_numbers(q, plan, rules), **_strides(tensors), **how)


def back_to_queries(
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    singles: Singles,
    plan: Plan,
    rules: Rules,
    y: Float[Tensor, "b h n e"],
    z: Float[Tensor, "b h filled"],
    through: Float[Tensor, "b h filled"],
    dq: Float[Tensor, "b h n c"],
) -> None:
    """Fill in dq, and `through`, which is dy . y of every query."""
    k_single, v_single = singles or (k, v)
    tensors = {"dy": dy, "q": q, "k": k, "v": v, "k_single": k_single, "v_single": v_single, "y": y, "dq": dq}
    how, numbers = launch(q, v, plan, rules, "back"), _numbers(q, plan, rules)
    _back_to_queries[_grid(q, how)](**tensors, z=z, through=through, **numbers, **_strides(tensors), **how)


def back_to_keys(
    dy: Float[Tensor, "b h n e"],
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    singles: Singles,
    plan: Plan,
    rules: Rules,
    z: Float[Tensor, "b h filled"],
    through: Float[Tensor, "b h filled"],
    dk: Float[Tensor, "b h n c"],
    dv: Float[Tensor, "b h n e"],
) -> None:
    """Fill in dk and dv: first those of near keys, which are 0 for columns, then those of columns."""
    (b, h, n), numbers = q.shape[:3], {"z": z, "through": through, **_numbers(q, plan, rules)}
    how = launch(q, v, plan, rules, "back")
    tensors = {"dy": dy, "q": q, "k": k, "v": v, "dk": dk, "dv": dv}
    _back_to_keys[_grid(q, how)](**tensors, **numbers, keys=n, share=n, **_strides(tensors), SINGLE=False, **how)
    if singles is None:
        return
    k_single, v_single = singles
    t = k_single.shape[2]
    how |= {"T": (tile := column_chunk(t)), "LISTED": False}
    parts = max(1, min(ceil(PROGRAMS, b * h * t // tile), ceil(n, LEAST)))
    share = ceil(n, parts * CHUNK) * CHUNK
    dk_parts, dv_parts = (x.new_empty(parts * b, h, t, x.shape[3], dtype=torch.float32) for x in singles)
    tensors = {"dy": dy, "q": q, "k": k_single, "v": v_single, "dk": dk_parts, "dv": dv_parts}
    grid, numbers = (t // tile, b * h, parts), numbers | {"block": n, "before": 0, "after": 0, "reach": n}
    _back_to_keys[grid](**tensors, **numbers, keys=t, share=share, **_strides(tensors), SINGLE=True, **how)
    places = {name: numbers[name] for name in ("columns", "heads", "n", "row_step", "head_step")}
    tensors = {"dk_parts": dk_parts, "dv_parts": dv_parts, "dk": dk, "dv": dv}
    sizes = {name: how[name] for name in ("c", "e", "C", "E", "T")}
    _put[grid[:2]](**tensors, **places, parts=parts, keys=t, **_strides({"dk": dk, "dv": dv}), **sizes)


def launch(q: Tensor, v: Tensor, plan: Plan, rules: Rules, way: Literal["forth", "back"]) -> dict:
    """Widths, the powers of two they are filled up to, sides of tiles, what there is, and the shape of a program."""
    c, e, side = q.shape[3], v.shape[3], side_of(rules[0], plan.tiles is not None)
    C, E = next_power_of_2(c), next_power_of_2(e)
    wide, single = max(C, E) > 64, q.element_size() > 2
    t = 0 if plan.columns is None else plan.columns.shape[2]
    sizes = {
        "c": c,
        "e": e,
        "C": C,
        "E": E,
        "S": CHUNK,
        "SIDE": side,
        "SINGLES": min(CHUNK, column_chunk(t)) if t else 0,
    }
    there = {"HIDDEN": plan.places is not None, "LISTED": plan.tiles is not None, "CAUSAL": rules[4]}
    # The way back holds twice as much in registers; numbers of four bytes take the room of further chunks in flight.
    tile, stages = side if way == "forth" else CHUNK, 1 if single else (2 if wide else 3)
    shape = {"T": tile, "num_warps": 8 if wide else 4, "num_stages": stages}
    return sizes | there | shape


def _grid(q: Tensor, how: dict) -> tuple[int, int]:
    return ceil(q.shape[2], how["T"]), q.shape[0] * q.shape[1]


def _numbers(q: Tensor, plan: Plan, rules: Rules) -> dict:
    """Plan and rules, with a tensor that nobody looks at for what there is none of, and how to find one's own part."""
    n, (block, before, after, reach, _) = q.shape[2], rules
    if plan.tiles is not None:  # which say all about blocks
        block, before, after = n, 0, 0
    first = next((part for part in plan if part is not None), None)
    rows, heads = (1, 1) if first is None else first.shape[:2]
    nothing = q if first is None else first
    parts = {name: nothing if part is None else part for name, part in plan._asdict().items()}
    parts |= {"row_step": heads if rows > 1 else 0, "head_step": 1 if heads > 1 else 0}
    parts |= {"columns_all": 0 if plan.columns is None else plan.columns.shape[2]}
    parts |= {"width": 0 if plan.tiles is None else plan.tiles.shape[3], "heads": q.shape[1], "n": n}
    return parts | {"block": block, "before": before, "after": after, "reach": reach, "scale": q.shape[3] ** -0.5}


def _strides(tensors: dict[str, Tensor]) -> dict[str, int]:
    return {f"{name}_{axis}": x.stride(place) for name, x in tensors.items() for place, axis in enumerate("bht")}


@triton.jit
@no_type_check
def _forth(
    q, k, v, k_single, v_single, y, z, places, latest, tiles, counts, seers, starts, columns, columns_latest, until,
    row_step, head_step, columns_all, width, heads, n, block, before, after, reach, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, k_single_b, k_single_h, k_single_t, v_single_b, v_single_h, v_single_t,
    y_b, y_h, y_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
    S: tl.constexpr, SIDE: tl.constexpr, SINGLES: tl.constexpr, HIDDEN: tl.constexpr, LISTED: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    pair, tile, row, head, own = _who(heads, row_step, head_step, CAUSAL)
    first = tile * T
    queries = _load(q + row * q_b + head * q_h, first, q_t, n, c, C, T)
    scale_2 = scale * LOG2E
    top, total, acc = tl.full([T], LOW, tl.float32), tl.zeros([T], tl.float32), tl.zeros([T, E], tl.float32)

    low, high, lowest, highest, begin, stop = _near(
        first, n, block, before, after, reach, counts, own, T, S, SIDE, LISTED, CAUSAL
    )
    top, total, acc = _look(
        top, total, acc, queries, k + row * k_b + head * k_h, v + row * v_b + head * v_h, k_t, v_t, n,
        places + own * _up(n, SIDE), latest + own * (_up(n, SIDE) // S),
        tiles + (own * tl.cdiv(n, SIDE) + first // SIDE) * width, begin, stop, low, high, lowest, highest, scale_2,
        c, e, C, E, S, SIDE // S, HIDDEN, LISTED,
    )  # fmt: skip
    if SINGLES:
        low, high, lowest, highest, begin, stop = _far(first, n, until, own, T, S, CAUSAL)
        top, total, acc = _look(
            top, total, acc, queries, k_single + row * k_single_b + head * k_single_h,
            v_single + row * v_single_b + head * v_single_h, k_single_t, v_single_t, columns_all,
            columns + own * columns_all, columns_latest + own * (columns_all // SINGLES), tiles, begin, stop, low, high,
            lowest, highest, scale_2, c, e, C, E, SINGLES, 1, True, False,
        )  # fmt: skip

    i, blind = first + tl.arange(0, T), total == 0
    top, total = tl.where(blind, 0.0, top), tl.where(blind, 1.0, total)  # so that y is 0, and nothing infinite
    _store(y + row * y_b + head * y_h, acc / total[:, None], first, y_t, n, e, E, T)
    tl.store(z + pair * _up(n, S) + i, top + tl.log2(total), mask=i < _up(n, S))


@triton.jit
@no_type_check
def _look(
    top, total, acc, queries, k, v, k_t, v_t, end, places, latest, tiles, begin, stop, low, high, lowest, highest,
    scale, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, S: tl.constexpr, PER: tl.constexpr,
    HIDDEN: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The softmax so far, and with these chunks of keys."""
    for turn in range(begin, stop):
        chunk = _chunk(turn, tiles, PER, LISTED)
        start = chunk * S
        keys, values = _load(k, start, k_t, end, c, C, S), _load(v, start, v_t, end, e, E, S)
        s = _scores(queries, keys)  # [T, S]
        if _is_broken(chunk, start, latest, lowest, highest, S, HIDDEN):
            place = _places(start, places, S, HIDDEN)[None, :]
            s = tl.where((place >= low[:, None]) & (place <= high[:, None]), s, float("-inf"))
        most = tl.maximum(top, tl.max(s, axis=1) * scale)
        p, fade = tl.exp2(s * scale - most[:, None]), tl.exp2(top - most)
        top, total = most, total * fade + tl.sum(p, axis=1)
        acc = dot(p.to(values.dtype), values, acc * fade[:, None])
    return top, total, acc


@triton.jit
@no_type_check
def _back_to_queries(
    dy, q, k, v, k_single, v_single, y, z, through, dq, places, latest, tiles, counts, seers, starts, columns,
    columns_latest, until, row_step, head_step, columns_all, width, heads, n, block, before, after, reach, scale,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, k_single_b, k_single_h, k_single_t, v_single_b,
    v_single_h, v_single_t, y_b, y_h, y_t, dq_b, dq_h, dq_t, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr,
    E: tl.constexpr, T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, SINGLES: tl.constexpr, HIDDEN: tl.constexpr,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    pair, tile, row, head, own = _who(heads, row_step, head_step, CAUSAL)
    first = tile * T
    queries = _load(q + row * q_b + head * q_h, first, q_t, n, c, C, T)
    g = _load(dy + row * dy_b + head * dy_h, first, dy_t, n, e, E, T)
    output = _load(y + row * y_b + head * y_h, first, y_t, n, e, E, T)
    i = first + tl.arange(0, T)
    d = tl.sum(g.to(tl.float32) * output.to(tl.float32), axis=1)  # [T]
    tl.store(through + pair * _up(n, S) + i, d, mask=i < _up(n, S))
    sums = tl.load(z + pair * _up(n, S) + i, mask=i < _up(n, S), other=0.0)
    scale_2 = scale * LOG2E
    acc = tl.zeros([T, C], tl.float32)

    low, high, lowest, highest, begin, stop = _near(
        first, n, block, before, after, reach, counts, own, T, S, SIDE, LISTED, CAUSAL
    )
    acc = _look_back(
        acc, queries, g, d, sums, k + row * k_b + head * k_h, v + row * v_b + head * v_h, k_t, v_t, n,
        places + own * _up(n, SIDE), latest + own * (_up(n, SIDE) // S),
        tiles + (own * tl.cdiv(n, SIDE) + first // SIDE) * width, begin, stop, low, high, lowest, highest, scale_2,
        c, e, C, E, S, SIDE // S, HIDDEN, LISTED,
    )  # fmt: skip
    if SINGLES:
        low, high, lowest, highest, begin, stop = _far(first, n, until, own, T, S, CAUSAL)
        acc = _look_back(
            acc, queries, g, d, sums, k_single + row * k_single_b + head * k_single_h,
            v_single + row * v_single_b + head * v_single_h, k_single_t, v_single_t, columns_all,
            columns + own * columns_all, columns_latest + own * (columns_all // SINGLES), tiles, begin, stop, low, high,
            lowest, highest, scale_2, c, e, C, E, SINGLES, 1, True, False,
        )  # fmt: skip
    _store(dq + row * dq_b + head * dq_h, acc * scale, first, dq_t, n, c, C, T)


@triton.jit
@no_type_check
def _look_back(
    acc, queries, g, d, sums, k, v, k_t, v_t, end, places, latest, tiles, begin, stop, low, high, lowest, highest,
    scale, c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, S: tl.constexpr, PER: tl.constexpr,
    HIDDEN: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """dq so far, and with these chunks of keys."""
    for turn in range(begin, stop):
        chunk = _chunk(turn, tiles, PER, LISTED)
        start = chunk * S
        keys, values = _load(k, start, k_t, end, c, C, S), _load(v, start, v_t, end, e, E, S)
        p = tl.exp2(_scores(queries, keys) * scale - sums[:, None])  # [T, S]
        if _is_broken(chunk, start, latest, lowest, highest, S, HIDDEN):
            place = _places(start, places, S, HIDDEN)[None, :]
            p = tl.where((place >= low[:, None]) & (place <= high[:, None]), p, 0.0)
        ds = p * (_scores(g, values) - d[:, None])
        acc = dot(ds.to(keys.dtype), keys, acc)
    return acc


@triton.jit
@no_type_check
def _back_to_keys(
    dy, q, k, v, z, through, dk, dv, places, latest, tiles, counts, seers, starts, columns, columns_latest, until,
    row_step, head_step, columns_all, width, heads, n, block, before, after, reach, scale, keys, share,
    dy_b, dy_h, dy_t, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr, S: tl.constexpr,
    SIDE: tl.constexpr, SINGLES: tl.constexpr, HIDDEN: tl.constexpr, LISTED: tl.constexpr, CAUSAL: tl.constexpr,
    SINGLE: tl.constexpr,
):  # fmt: skip
    """A tile of tokens with the tiles of queries near it, or one of columns with a share of all queries."""
    pair, tile, row, head, own = _who(heads, row_step, head_step, False)
    start = tile * T
    ones = _load(k + row * k_b + head * k_h, start, k_t, keys, c, C, T)
    values = _load(v + row * v_b + head * v_h, start, v_t, keys, e, E, T)
    place = start + tl.arange(0, T)
    if SINGLE:
        place = tl.load(columns + own * keys + place)
    elif HIDDEN:
        place = tl.load(places + own * _up(n, SIDE) + place)
    # Whoever sees so many blocks before and after his own is seen from as many after and before them.
    low, high = _bounds(place, n, reach, block, after, before, False)
    if CAUSAL:
        low = tl.maximum(low, place)
    low, high = tl.where(place < n, low, n), tl.where(place < n, high, -1)  # the others by nobody
    lowest, highest = tl.max(low, axis=0), tl.min(high, axis=0)
    if LISTED:
        at = starts + own * (tl.cdiv(n, SIDE) + 1) + start // SIDE
        begin, stop = tl.load(at) * (SIDE // S), tl.load(at + 1) * (SIDE // S)
    else:
        begin, stop = tl.maximum(tl.min(low, axis=0), 0), tl.max(high, axis=0) + 1
        if SINGLE:
            begin = tl.maximum(begin, tl.program_id(2) * share)
            stop = tl.minimum(stop, (tl.program_id(2) + 1) * share)
        begin, stop = begin // S, tl.cdiv(stop, S)
    scale_2 = scale * LOG2E
    q, dy = q + row * q_b + head * q_h, dy + row * dy_b + head * dy_h
    z, through, seers = z + pair * _up(n, S), through + pair * _up(n, S), seers + own * (tl.cdiv(n, SIDE) * width)
    acc_k, acc_v = tl.zeros([T, C], tl.float32), tl.zeros([T, E], tl.float32)
    for turn in range(begin, stop):
        first = _chunk(turn, seers, SIDE // S, LISTED) * S
        i = first + tl.arange(0, S)
        queries, g = _load(q, first, q_t, n, c, C, S), _load(dy, first, dy_t, n, e, E, S)
        real = first < n  # the second half of the last tile need not be
        sums, d = tl.load(z + i, mask=real, other=0.0), tl.load(through + i, mask=real, other=0.0)
        p = tl.exp2(_scores(ones, queries) * scale_2 - sums[None, :])  # [T, S], keys by queries
        if (first < lowest) | (first + S - 1 > highest):
            p = tl.where((i[None, :] >= low[:, None]) & (i[None, :] <= high[:, None]), p, 0.0)
        acc_v = dot(p.to(g.dtype), g, acc_v)
        ds = p * (_scores(values, g) - d[None, :])
        acc_k = dot(ds.to(queries.dtype), queries, acc_k)
    if SINGLE:
        row += tl.program_id(2) * (tl.num_programs(1) // heads)
    _store(dk + row * dk_b + head * dk_h, acc_k * scale, start, dk_t, keys, c, C, T)
    _store(dv + row * dv_b + head * dv_h, acc_v, start, dv_t, keys, e, E, T)


@triton.jit
@no_type_check
def _put(
    dk_parts, dv_parts, dk, dv, columns, heads, n, row_step, head_step, parts, keys, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    c: tl.constexpr, e: tl.constexpr, C: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Add up what the shares of queries gave for a tile of columns, and put it where they stand."""
    pair, tile, row, head, own = _who(heads, row_step, head_step, False)
    acc_k, acc_v = tl.zeros([T, C], tl.float32), tl.zeros([T, E], tl.float32)
    for part in range(parts):
        at = (part * tl.num_programs(1) + pair) * keys
        acc_k += _load(dk_parts + at * c, tile * T, c, keys, c, C, T)
        acc_v += _load(dv_parts + at * e, tile * T, e, keys, e, E, T)
    place = tl.load(columns + own * keys + tile * T + tl.arange(0, T))
    _store_at(dk + row * dk_b + head * dk_h, acc_k, place, dk_t, n, c, C)
    _store_at(dv + row * dv_b + head * dv_h, acc_v, place, dv_t, n, e, E)


@triton.jit
@no_type_check
def _who(heads, row_step, head_step, LAST_FIRST: tl.constexpr):
    """The pair of row and head, the tile, row and head, and whose part of the plan is one's own; late tiles of queries
    see most columns in the causal form, and begin."""
    pair, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    if LAST_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    row, head = pair // heads, pair % heads
    return pair, tile, row, head, row * row_step + head * head_step


@triton.jit
@no_type_check
def _bounds(i, n, reach, block, before, after, CAUSAL: tl.constexpr):
    """The first and the last place that the query at i sees among the near ones; both rise with i."""
    low = tl.maximum(i - reach, (i // block - before) * block)
    high = tl.minimum(tl.minimum(i + reach, (i // block + after + 1) * block - 1), n - 1)
    if CAUSAL:
        high = tl.minimum(high, i)
    return low, high


@triton.jit
@no_type_check
def _near(
    first, n, block, before, after, reach, counts, own, T: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Bounds of each query of a tile, bounds that all of them share, and the turns that go through what lies in any."""
    low, high = _bounds(first + tl.arange(0, T), n, reach, block, before, after, CAUSAL)
    begin, highest = _bounds(first, n, reach, block, before, after, CAUSAL)
    lowest, stop = _bounds(tl.minimum(first + T, n) - 1, n, reach, block, before, after, CAUSAL)
    if LISTED:
        begin, stop = 0, tl.load(counts + own * tl.cdiv(n, SIDE) + first // SIDE) * (SIDE // S)
    else:
        begin, stop = tl.maximum(begin, 0) // S, (stop + S) // S
    return low, high, lowest, highest, begin, stop


@triton.jit
@no_type_check
def _far(first, n, until, own, T: tl.constexpr, S: tl.constexpr, CAUSAL: tl.constexpr):
    """The same of columns, which are seen from any distance."""
    low, high = _bounds(first + tl.arange(0, T), n, n, n, 0, 0, CAUSAL)
    _, highest = _bounds(first, n, n, n, 0, 0, CAUSAL)
    last = tl.minimum(first + T, n) - 1
    return low, high, 0, highest, 0, tl.load(until + own * tl.cdiv(n, S) + last // S)


@triton.jit
@no_type_check
def _chunk(turn, tiles, PER: tl.constexpr, LISTED: tl.constexpr):
    """Which chunk it is the turn of: of listed tiles each has several."""
    chunk = turn
    if LISTED:
        chunk = tl.load(tiles + turn // PER) * PER + turn % PER
    return chunk


@triton.jit
@no_type_check
def _is_broken(chunk, start, latest, lowest, highest, S: tl.constexpr, HIDDEN: tl.constexpr):
    """Whether some query of the tile does not see some key of the chunk."""
    last = start + S - 1
    if HIDDEN:
        last = tl.load(latest + chunk)
    return (start < lowest) | (last > highest)


@triton.jit
@no_type_check
def _places(start, places, S: tl.constexpr, HIDDEN: tl.constexpr):
    place = start + tl.arange(0, S)
    if HIDDEN:
        place = tl.load(places + place)
    return place


@triton.jit
@no_type_check
def _up(n, S: tl.constexpr):
    return tl.multiple_of(tl.cdiv(n, S) * S, S)


@triton.jit
@no_type_check
def _scores(a, b):
    return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
@no_type_check
def _load(x, start, step, end, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    """T rows of x from `start` on, 0 from `end` on."""
    at, channels = (start + tl.arange(0, T)).to(tl.int64), tl.arange(0, C)
    real = (at < end)[:, None] & (channels < c)[None, :]
    return tl.load(x + at[:, None] * step + channels[None, :], mask=real, other=0.0)


@triton.jit
@no_type_check
def _store(x, rows, start, step, end, c: tl.constexpr, C: tl.constexpr, T: tl.constexpr):
    _store_at(x, rows, start + tl.arange(0, T), step, end, c, C)


@triton.jit
@no_type_check
def _store_at(x, rows, places, step, end, c: tl.constexpr, C: tl.constexpr):
    at, channels = places.to(tl.int64), tl.arange(0, C)
    real = (at < end)[:, None] & (channels < c)[None, :]
    tl.store(x + at[:, None] * step + channels[None, :], rows.to(x.dtype.element_ty), mask=real)
