"""The plan of block-sparse attention: the pairs it covers, when it is rebuilt, and which calls take the kernel."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels import block_sparse as engine
from longspan.kernels.block_sparse import block_sparse, operator, plan, without_repeats
from longspan.kernels.dispatch import HAS_TRITON
from tests.kernels.in_a_process import needs_triton
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
    """How often each query sees each token in one row and head, reading the plan as the kernel does."""
    side, seen = plan.tile_side(block, around is None), torch.zeros(n, n, dtype=torch.int32)
    positions = torch.arange(n) if made.positions is None else made.positions
    for i in range(n):
        low, high = bounds(i, n, block, around, n if reach is None else reach, causal)
        near = range(low, high + 1)
        if around is None:
            tiles = made.key_tiles[i // side, : made.key_counts[i // side]].tolist()
            near = [j for tile in tiles for j in range(tile * side, min((tile + 1) * side, n))]
        for j in near:
            seen[i, j] += int(low <= positions[j] <= high)
        if made.global_keys is not None:
            chunk = len(made.global_keys) // len(made.global_max)
            for position in made.global_keys[: made.global_counts[i // plan.CHUNK] * chunk].tolist():
                if position <= (i if causal else n - 1):
                    seen[i, position] += 1
    return seen


@given(problems(), st.sampled_from([(1, 1), (0, 0), (2, 0), (0, -1), None]))
@settings(deadline=None, max_examples=60)
@small_tiles()
def test_a_plan_shows_exactly_the_pairs_of_the_reference(problem, around):
    n, lists, rules, _ = problem
    assume(around is not None or rules["block"] % plan.CHUNK == 0)
    named = without_repeats(lists) if around is None else around
    made = plan.make_plan(n, named, **rules, device=torch.device("cpu"))
    eye = torch.eye(n, dtype=torch.float64).expand(2, 3, n, n)
    zeros = torch.zeros(2, 3, n, 4, dtype=torch.float64)
    expected = block_sparse(zeros, zeros, eye, lists if around is None else around, **rules, impl="reference")
    for row in range(2):
        for head in range(3):
            one = [None if x is None else x.expand(2, 3, *x.shape[2:])[row, head] for x in made]
            seen = times_seen(plan.Plan(*one), n, rules["block"], around, rules["reach"], rules["causal"])
            assert torch.equal(seen, (expected[row, head] > 0).int())


@small_tiles()
def test_lists_of_queries_and_of_keys_name_the_same_pairs():
    lists = without_repeats(torch.randint(-1, 9, (2, 3, 8, 4), generator=torch.Generator().manual_seed(1)))
    rules = {"block": 4, "reach": 6, "causal": True, "global_keys": None, "key_mask": None}
    made = plan.make_plan(30, lists, **rules, device=torch.device("cpu"))
    for row in range(2):
        for head in range(3):
            key_tiles, counts, query_tiles, starts = (x[row, head].tolist() for x in made[2:6])
            by_query = {(u, w) for u, count in enumerate(counts) for w in key_tiles[u][:count]}
            by_key = {(u, w) for w in range(len(counts)) for u in query_tiles[starts[w] : starts[w + 1]]}
            assert by_query == by_key
            assert starts[-1] == sum(counts) == len(by_query)


@small_tiles()
def test_the_greatest_position_of_a_chunk_tells_whether_it_holds_a_hidden_one():
    mask = torch.tensor([[True, True, True, False, True]])
    rules = {"block": 4, "reach": None, "causal": False, "global_keys": None, "key_mask": mask}
    made = plan.make_plan(5, (0, 0), **rules, device=torch.device("cpu"))
    assert made.positions.clamp(max=5).tolist() == [[[0, 1, 2, 5, 4, 5, 5, 5]]]
    assert made.chunk_max.clamp(max=5).tolist() == [[[1, 5, 5, 5]]]


@pytest.fixture
def without_kernel(monkeypatch):
    """Plans are built and cached (the cache starts empty) but no kernel runs; returns a list that collects plans."""
    given_plans = []
    monkeypatch.setattr(plan, "_cached", type(plan._cached)())
    monkeypatch.setattr(operator, "forward", lambda q, k, v, *rest: given_plans.append(rest[:9]) or (v, None))
    return given_plans


class Counted:
    """Lists of only the own block; counts how often they are built."""

    def __init__(self, n):
        self.n, self.times = n, 0

    def __call__(self):
        self.times += 1
        return torch.arange(self.n // 64)[None, None, :, None]


def run(lists, cache_key, **rules):
    q = torch.zeros(1, 2, lists.n, 4)
    return block_sparse(q, q, q, lists, block=64, cache_key=cache_key, **rules, impl="triton")


@needs_triton
def test_a_plan_is_made_once_for_each_shape_and_rule(without_kernel):
    short, long = Counted(128), Counted(256)
    for _ in range(3):
        run(short, "own"), run(long, "own")
    assert (short.times, long.times) == (1, 1)
    run(short, "own", causal=True), run(short, "own", reach=3), run(short, "other")
    assert short.times == 4


@needs_triton
def test_other_neighbours_are_another_plan(without_kernel, monkeypatch):
    made = []
    monkeypatch.setattr(engine, "make_plan", lambda n, around, **rules: made.append(around) or plan.Plan())
    q = torch.zeros(1, 2, 16, 4)
    for around in ((1, 1), (1, 0), (1, 1)):
        block_sparse(q, q, q, around, block=8, cache_key="own", impl="triton")
    assert made == [(1, 1), (1, 0)]


@needs_triton
def test_a_plan_is_made_anew_with_padding_without_a_key_and_after_its_tensor_changed(without_kernel):
    lists, draws = Counted(128), torch.zeros(3)
    for _ in range(2):
        run(lists, draws)
    assert lists.times == 1
    draws[0] = 1
    run(lists, draws)
    run(lists, draws.clone())
    run(lists, draws, key_mask=torch.ones(1, 128, dtype=torch.bool))
    run(lists, None)
    assert lists.times == 5


@needs_triton
def test_only_the_latest_plans_are_kept(without_kernel):
    lists = Counted(128)
    for name in range(plan.CACHED + 1):
        run(lists, name)
    run(lists, plan.CACHED)
    assert lists.times == plan.CACHED + 1
    run(lists, 0)
    assert lists.times == plan.CACHED + 2
    assert len(plan._cached) == plan.CACHED


@needs_triton
def test_a_plan_made_in_inference_serves_for_training(without_kernel):
    with torch.inference_mode():
        run(Counted(128), "own")
    assert not any(part.is_inference() for part in without_kernel[0] if part is not None)


@needs_triton
@pytest.mark.parametrize(
    "spec", ["bigbird", "longformer(window=16,global_tokens=3)", "sparse_transformer(stride=8,summary=2)"]
)
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_the_cached_plan_of_a_mechanism_is_the_right_one(spec, pattern, without_kernel, monkeypatch):
    """Two layers and two lengths in turn, each compared with a freshly built plan."""
    monkeypatch.setattr(engine, "is_faster", lambda *call: True)
    one, other = (attentions.get(spec)(32, 2, pattern, max_length=512).eval() for _ in range(2))
    for layer, n in [(one, 400), (other, 400), (one, 300), (one, 400), (other, 300)]:
        q, k, v = torch.randn(3, 2, 2, n, 16).unbind()
        layer.attend(q, k, v)
        with monkeypatch.context() as patch:
            patch.setattr(plan, "_cached", type(plan._cached)())
            layer.attend(q, k, v)
        for cached, fresh in zip(*without_kernel[-2:], strict=True):
            assert (cached is None and fresh is None) or torch.equal(cached, fresh)


def test_long_rows_of_half_precision_on_a_gpu_take_the_kernel():
    q = torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16)
    assert not engine.is_faster(q, q, (1, 1), 128, 0.0)
    with FakeTensorMode():
        q, single, short, wide = (
            torch.empty(1, 1, n, c, dtype=dtype, device="cuda")
            for n, c, dtype in [(4096, 64, torch.bfloat16), (4096, 64, torch.float32), (100, 64, torch.bfloat16),
                                (4096, 256, torch.bfloat16)]
        )  # fmt: skip
    lists = torch.zeros(1, 1, 43, 1, dtype=torch.long)
    assert engine.is_faster(q, q, (1, 1), 91, 0.0) == HAS_TRITON
    assert engine.is_faster(q, q, lists, 192, 0.0) == HAS_TRITON
    assert not engine.is_faster(q, q, lists, 96, 0.0)
    assert not engine.is_faster(q, q, (1, 1), 91, 0.1)
    assert not any(engine.is_faster(x, x, (1, 1), 91, 0.0) for x in (single, short, wide))


@pytest.mark.parametrize("key_blocks, dtype, dropout, words", [
    (torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.float32, 0.0, "multiple of 64"),
    ((1, 1), torch.float64, 0.0, "half precision"),
    ((1, 1), torch.float32, 0.1, "no dropout"),
])  # fmt: skip
@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence(key_blocks, dtype, dropout, words):
    q = torch.zeros(1, 1, 8, 16, dtype=dtype)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        block_sparse(q, q, q, key_blocks, block=8, dropout=dropout, impl="triton")


@needs_compiler
@pytest.mark.parametrize(
    "listed, c, limit_kib", [(False, 64, 88), (True, 64, 88), pytest.param(False, 128, 160, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("band", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["_forward", "_backward_queries", "_backward_keys", "_add_parts"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name, listed, c, limit_kib, band):
    from longspan.kernels.block_sparse import triton as kernels

    kernel, numbers = getattr(kernels, name), torch.zeros(1, 1, 64, 1, dtype=torch.int32)
    sample = torch.empty(1, 1, 1, c, dtype=torch.bfloat16)
    some = plan.Plan(positions=numbers, key_tiles=numbers if listed else None, global_keys=numbers)
    direction = "forward" if name == "_forward" else "backward"
    constants = kernels.launch(sample, sample, some, plan.Rules(64, 0, 0, 1, True), direction)
    kinds = dict.fromkeys(plan.Plan._fields, "*i32") | {"scale": "fp32"}
    kinds |= dict.fromkeys(("lse", "delta", "dk_parts", "dv_parts"), "*fp32")
    in_half = ("q", "k", "v", "k_global", "v_global", "y", "dy", "dq", "dk", "dv", "terms", "d_terms")
    kinds |= dict.fromkeys(in_half, "*bf16")
    constants |= {"GLOBAL": False} | ({"block": 1} if band else {})  # the compiler specialises on arguments equal to 1
    built = compiled(kernel, constants, kinds, otherwise="i32", multiples=STRIDES)
    assert built.metadata.shared <= limit_kib * 1024
