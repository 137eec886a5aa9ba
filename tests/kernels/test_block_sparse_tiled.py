"""Block-sparse attention tile by tile: what a plan says is the law, who takes the kernel, and that it compiles."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import block_sparse, kept, plan, tiled, without_repeats
from longspan.kernels.dispatch import HAS_TRITON
from tests.kernels.in_a_process import ROUNDS, assert_passes, needs_triton
from tests.kernels.sm90 import STRIDES, compiled, needs_compiler
from tests.kernels.test_block_sparse import problems


@contextmanager
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"CHUNK": 2, "TILE": 4, "FEW": 1}.items():
            patch.setattr(plan, name, size)
        yield


def bounds(i, n, block, around, reach, causal):
    low, high = max(0, i - reach), min(n - 1, i + reach, i if causal else n)
    if around is not None:
        low, high = max(low, (i // block - around[0]) * block), min(high, (i // block + around[1] + 1) * block - 1)
    return low, high


def times_seen(made, n, block, around, reach, causal):
    """How often each query sees each token, read off the plan as the kernel reads it, of one row and head."""
    side, seen = plan.side_of(block, around is None), torch.zeros(n, n, dtype=torch.int32)
    places = torch.arange(n) if made.places is None else made.places
    for i in range(n):
        low, high = bounds(i, n, block, around, n if reach is None else reach, causal)
        near = range(low, high + 1)
        if around is None:
            tiles = made.tiles[i // side, : made.counts[i // side]].tolist()
            near = [j for tile in tiles for j in range(tile * side, min((tile + 1) * side, n))]
        for j in near:
            seen[i, j] += int(low <= places[j] <= high)
        if made.columns is not None:
            chunk = len(made.columns) // len(made.columns_latest)
            for place in made.columns[: made.until[i // plan.CHUNK] * chunk].tolist():
                if place <= (i if causal else n - 1):
                    seen[i, place] += 1
    return seen


@given(problems(), st.sampled_from([(1, 1), (0, 0), (2, 0), (0, -1), None]))
@settings(deadline=None, max_examples=60)
@small_tiles()
def test_a_plan_shows_exactly_the_pairs_of_the_law(problem, around):
    n, lists, rules, _ = problem
    assume(around is not None or rules["block"] % plan.CHUNK == 0)
    named = without_repeats(lists) if around is None else around
    made = plan.make_plan(n, named, **rules, device=torch.device("cpu"))
    eye = torch.eye(n, dtype=torch.float64).expand(2, 3, n, n)
    zeros = torch.zeros(2, 3, n, 4, dtype=torch.float64)
    law = block_sparse(zeros, zeros, eye, lists if around is None else around, **rules, impl="reference")
    for row in range(2):
        for head in range(3):
            one = [None if x is None else x.expand(2, 3, *x.shape[2:])[row, head] for x in made]
            seen = times_seen(plan.Plan(*one), n, rules["block"], around, rules["reach"], rules["causal"])
            assert torch.equal(seen, (law[row, head] > 0).int())


@small_tiles()
def test_lists_of_queries_and_of_keys_name_the_same_pairs():
    lists = without_repeats(torch.randint(-1, 9, (2, 3, 8, 4), generator=torch.Generator().manual_seed(1)))
    rules = {"block": 4, "reach": 6, "causal": True, "columns": None, "key_mask": None}
    made = plan.make_plan(30, lists, **rules, device=torch.device("cpu"))
    for row in range(2):
        for head in range(3):
            tiles, counts, seers, starts = (x[row, head].tolist() for x in made[2:6])
            forth = {(u, w) for u, count in enumerate(counts) for w in tiles[u][:count]}
            back = {(u, w) for w in range(len(counts)) for u in seers[starts[w] : starts[w + 1]]}
            assert forth == back
            assert starts[-1] == sum(counts) == len(forth)


@small_tiles()
def test_the_greatest_place_of_a_chunk_tells_whether_it_holds_a_hidden_one():
    mask = torch.tensor([[True, True, True, False, True]])
    rules = {"block": 4, "reach": None, "causal": False, "columns": None, "key_mask": mask}
    made = plan.make_plan(5, (0, 0), **rules, device=torch.device("cpu"))
    assert made.places.clamp(max=5).tolist() == [[[0, 1, 2, 5, 4, 5, 5, 5]]]
    assert made.latest.clamp(max=5).tolist() == [[[1, 5, 5, 5]]]


def test_a_plan_with_a_name_is_made_once_for_each_shape(monkeypatch):
    monkeypatch.setattr(kept, "_kept", type(kept._kept)())
    monkeypatch.setattr(tiled.operator, "forward", lambda q, *rest: (q, None))
    made = []
    monkeypatch.setattr(tiled, "make_plan", lambda *x, **how: made.append(1) or plan.Plan())
    for n in (16, 32, 16):
        q = torch.zeros(1, 2, n, 4)
        tiled.block_sparse(q, q, q, (1, 1), block=8, pattern="own")
    assert len(made) == 2
    tiled.block_sparse(q, q, q, (1, 0), block=8, pattern="own")
    tiled.block_sparse(q, q, q, (1, 1), block=8)
    tiled.block_sparse(q, q, q, (1, 1), block=8, pattern="own", key_mask=torch.ones(1, 16, dtype=torch.bool))
    assert len(made) == 5


def test_long_rows_of_half_precision_on_a_gpu_take_the_kernel():
    q = torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16)
    assert not tiled.is_faster(q, q, (1, 1), 128, 0.0)
    with FakeTensorMode():
        q, single, short, wide = (
            torch.empty(1, 1, n, c, dtype=dtype, device="cuda")
            for n, c, dtype in [(4096, 64, torch.bfloat16), (4096, 64, torch.float32), (100, 64, torch.bfloat16),
                                (4096, 256, torch.bfloat16)]
        )  # fmt: skip
    lists = torch.zeros(1, 1, 43, 1, dtype=torch.long)
    assert tiled.is_faster(q, q, (1, 1), 91, 0.0) == HAS_TRITON
    assert tiled.is_faster(q, q, lists, 192, 0.0) == HAS_TRITON
    assert not tiled.is_faster(q, q, lists, 96, 0.0)
    assert not tiled.is_faster(q, q, (1, 1), 91, 0.1)
    assert not any(tiled.is_faster(x, x, (1, 1), 91, 0.0) for x in (single, short, wide))
    with FlopCounterMode(display=False):
        assert not tiled.is_faster(q, q, (1, 1), 91, 0.0)


@pytest.mark.parametrize("lists, dtype, dropout, words", [
    (torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.float32, 0.0, "multiple of 64"),
    ((1, 1), torch.float64, 0.0, "half precision"),
    ((1, 1), torch.float32, 0.1, "drops no weights"),
])  # fmt: skip
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(lists, dtype, dropout, words):
    q = torch.zeros(1, 1, 8, 16, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        block_sparse(q, q, q, lists, block=8, dropout=dropout, impl="triton")


@needs_triton
@pytest.mark.parametrize("choice", ROUNDS, ids=" ".join)
def test_the_kernel_follows_the_law(choice):
    assert_passes("block_sparse_kernel.py", *choice)


@needs_compiler
@pytest.mark.parametrize(
    "listed, c, limit_kib", [(False, 64, 88), (True, 64, 88), pytest.param(False, 128, 160, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("band", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["_forth", "_back_to_queries", "_back_to_keys", "_put"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, listed, c, limit_kib, band):
    from longspan.kernels.block_sparse import triton as kernels

    kernel, numbers = getattr(kernels, name), torch.zeros(1, 1, 64, 1, dtype=torch.int32)
    sample = torch.empty(1, 1, 1, c, dtype=torch.bfloat16)
    some = plan.Plan(places=numbers, tiles=numbers if listed else None, columns=numbers)
    constants = kernels.launch(sample, sample, some, (64, 0, 0, 1, True), "forth" if name == "_forth" else "back")
    kinds = dict.fromkeys(plan.Plan._fields, "*i32") | {"scale": "fp32"}
    kinds |= dict.fromkeys(("z", "through", "dk_parts", "dv_parts"), "*fp32")
    kinds |= dict.fromkeys(("q", "k", "v", "k_single", "v_single", "y", "dy", "dq", "dk", "dv"), "*bf16")
    constants |= {"SINGLE": False} | ({"block": 1} if band else {})  # the compiler is told where a number is 1
    built = compiled(kernel, constants, kinds, otherwise="i32", multiples=STRIDES)
    assert built.metadata.shared <= limit_kib * 1024
