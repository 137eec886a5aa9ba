"""Block-sparse attention by flex_attention: the mask beside the law, and which masks are made anew.

On a CPU the formula behind the kernel is run, with tiles small enough for short rows; the kernel itself is tested by
`block_sparse_flex.py`, on a GPU.
"""

import pytest
import torch
from hypothesis import given, settings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.block_sparse import block_sparse, flex, kept
from tests.attentions.allowed import assert_same, tensors
from tests.kernels.test_block_sparse import problems


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(flex, "TILE", 8)
    monkeypatch.setattr(kept, "_kept", type(kept._kept)())
    door = "torch.nn.attention.flex_attention"
    monkeypatch.setattr(f"{door}._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # run as it stands, without a compiler
    monkeypatch.setattr(f"{door}._validate_device", lambda *qkv: None)  # for CPUs it says that kernels have no way back


@given(problem=problems())
@settings(deadline=None, max_examples=60)
def test_the_mask_shows_exactly_the_pairs_of_the_law(problem):
    n, lists, rules, _ = problem
    columns = rules["columns"]
    tile = flex.tile_of(rules["block"])
    columns = None if columns is None or not columns.shape[2] else flex._whole_tiles(columns, tile)
    tiled = rules["block"] % tile == 0
    mask = flex.block_mask((2, 3, n), lists, **rules | {"columns": columns}, tiled=tiled)
    found = seen(mask, n, columns, tile)
    eye = torch.eye(n, dtype=torch.float64).expand(2, 3, n, n)
    zeros = torch.zeros(2, 3, n, 4, dtype=torch.float64)
    law = block_sparse(zeros, zeros, eye, lists, **rules, impl="reference")
    assert torch.equal(found, (law > 0).int())


def seen(mask, n, columns, tile):
    """How often each query sees each token, by the mask's own tiles and rule."""
    ahead = mask.seq_lengths[1] - n
    rows, heads = torch.arange(2)[:, None, None, None], torch.arange(3)[:, None, None]
    i, j = torch.arange(n)[:, None], torch.arange(ahead + n)
    rule = mask.mask_mod(rows, heads, i, j)
    dense = [
        torch.zeros(*indices.shape[:3], indices.shape[3] + 1, dtype=torch.bool).scatter(
            3, indices.where(torch.arange(indices.shape[3]) < count[..., None], indices.shape[3]).long(), True
        )[..., :-1]
        for count, indices in (
            (mask.kv_num_blocks, mask.kv_indices),
            (mask.full_kv_num_blocks, mask.full_kv_indices),
        )
    ]
    broken, whole = (x[:, :, i // tile][..., j // tile][:, :, :, 0].expand(2, 3, -1, -1) for x in dense)
    assert not (broken & whole).any()
    pairs = ((broken & rule) | whole).int()
    found = pairs[..., ahead:].clone()
    if columns is not None:
        places = columns.clamp(0, n - 1).expand(2, 3, -1)[:, :, None].expand(-1, -1, n, -1)
        found.scatter_add_(3, places, pairs[..., :ahead])
    return found


@given(problem=problems())
@settings(deadline=None, max_examples=6)
def test_outputs_and_gradients_follow_the_law(problem):
    n, lists, rules, seed = problem
    q, k, v = leaves = tensors(2, 3, n, seed=seed)
    if not lists.shape[-1] and (rules["columns"] is None or not rules["columns"].shape[-1]):
        return  # no keys at all: never asked for
    found = block_sparse(q, k, v, lists, **rules, impl="flex")
    assert_same(found, block_sparse(q, k, v, lists, **rules, impl="reference"), leaves)


def test_blocks_of_half_a_tile_are_whole_tiles_of_their_own():
    lists = torch.tensor([[[[0, 2], [1, 3], [2, 0], [3, 1]]]])
    rules = {"block": 4, "reach": None, "causal": False, "columns": None, "key_mask": None}
    mask = flex.block_mask((1, 1, 16), lists, **rules, tiled=True)
    assert mask.full_kv_num_blocks.tolist() == [[[2, 2, 2, 2]]]
    assert not mask.kv_num_blocks.any()
    options = flex._options(flex.tile_of(4))
    assert set(options.values()) == {4}
    assert flex._options(flex.tile_of(16)) is None


class Counted:
    """Lists of the own block alone, and how often they were made."""

    def __init__(self, n):
        self.n, self.times = n, 0

    def __call__(self):
        self.times += 1
        return torch.arange(self.n // 8)[None, None, :, None]


def run(lists, pattern, **rules):
    q = torch.zeros(1, 2, lists.n, 4)
    return block_sparse(q, q, q, lists, block=8, pattern=pattern, **rules, impl="flex")


def test_a_mask_is_made_once_for_each_shape_and_rule():
    short, long = Counted(16), Counted(32)
    for _ in range(3):
        run(short, "own"), run(long, "own")
    assert (short.times, long.times) == (1, 1)
    run(short, "own", causal=True), run(short, "own", reach=3), run(short, "other")
    assert short.times == 4


def test_a_mask_is_made_anew_with_padding_without_a_name_and_after_its_tensor_changed():
    lists, draws = Counted(16), torch.zeros(3)
    for _ in range(2):
        run(lists, draws)
    assert lists.times == 1
    draws[0] = 1
    run(lists, draws)
    run(lists, draws.clone())
    run(lists, draws, key_mask=torch.ones(1, 16, dtype=torch.bool))
    run(lists, None)
    assert lists.times == 5


def test_only_the_latest_masks_are_kept():
    lists = Counted(16)
    for name in range(kept.KEPT + 1):
        run(lists, name)
    run(lists, kept.KEPT)
    assert lists.times == kept.KEPT + 1
    run(lists, 0)
    assert lists.times == kept.KEPT + 2
    assert len(kept._kept) == kept.KEPT


def test_a_mask_made_in_inference_serves_for_training():
    lists = Counted(16)
    with torch.inference_mode():
        run(lists, "own")
    q = torch.randn(1, 2, 16, 4, requires_grad=True)
    block_sparse(q, q, q, lists, block=8, pattern="own", impl="flex").sum().backward()
    assert lists.times == 1
    assert q.grad is not None


@pytest.mark.parametrize(
    "spec", ["bigbird(block=8)", "longformer(window=16,global_tokens=3)", "sparse_transformer(stride=8,summary=2)"]
)
def test_mechanisms_name_their_patterns_so_that_a_kept_mask_is_the_right_one(spec, monkeypatch):
    """Two layers and two lengths in turn, each beside the path that keeps nothing."""
    for pattern in (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF):
        one, other = (attentions.get(spec)(8, 2, pattern, max_length=64).eval() for _ in range(2))
        for layer, n in [(one, 40), (other, 40), (one, 24), (one, 40), (other, 24)]:
            q, k, v = (torch.randn(2, 2, n, 4) for _ in range(3))
            expected = layer.attend(q, k, v)
            with monkeypatch.context() as patch:
                patch.setattr(flex, "is_faster", lambda *case: True)
                torch.testing.assert_close(layer.attend(q, k, v), expected)


def test_neither_a_cpu_nor_a_counted_call_takes_this_path():
    q = torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16)
    assert not flex.is_faster(q, q, 128, 0.0)
    with FakeTensorMode():
        q, short = (torch.empty(1, 1, n, 64, dtype=torch.bfloat16, device="cuda") for n in (4096, 1000))
    assert flex.is_faster(q, q, 128, 0.0)
    assert not flex.is_faster(q, q, 128, 0.1)
    assert not flex.is_faster(q, q, 3, 0.0)
    assert not flex.is_faster(short, short, 128, 0.0)
    with FlopCounterMode(display=False):
        assert not flex.is_faster(q, q, 128, 0.0)
