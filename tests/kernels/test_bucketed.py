"""Attention within buckets: the fast path and the matrix written out agree, in outputs and in gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.block_sparse import flex as tiles
from longspan.kernels.bucketed import bucketed, chunked, flex


def tensors(n, rounds, buckets, seed, b=2, h=2, c=3, e=4):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, c), (b, h, n, c), (b, h, n, e))
    leaves = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    mask = torch.rand(b, n, generator=generator) < 0.7
    return leaves, torch.randint(buckets, (b, h, rounds, n), generator=generator), mask


def assert_agree(attention, leaves, *rest, fast="auto", **options):
    found, expected = (attention(*leaves, *rest, **options, impl=impl) for impl in (fast, "reference"))
    close = {"rtol": 1e-11, "atol": 1e-11}  # nothing on the way may be in single precision
    torch.testing.assert_close(found, expected, **close)
    w = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, **close)


@given(
    n=st.integers(1, 70),
    rounds=st.integers(1, 3),
    buckets=st.sampled_from([1, 2, 5, 40]),
    left=st.integers(0, 80),
    right=st.integers(0, 80),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_a_window_within_the_bucket_agrees_with_the_reference(n, rounds, buckets, left, right, seed):
    leaves, numbers, _ = tensors(n, rounds, buckets, seed)
    assert_agree(bucketed, leaves, numbers, left=left, right=right)


@given(
    n=st.integers(1, 50),
    rounds=st.integers(1, 3),
    chunk=st.integers(1, 20),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    causal=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_chunks_agree_with_the_reference(n, rounds, chunk, before, after, causal, masked, seed):
    leaves, numbers, mask = tensors(n, rounds, 5, seed)
    options = {"chunk": chunk, "before": before, "after": after, "causal": causal, "key_mask": mask if masked else None}
    assert_agree(chunked, leaves, numbers, **options)


@pytest.mark.parametrize("n", [63, 1000])
@pytest.mark.parametrize("left, right", [(127, 0), (64, 64), (3, 1)])
def test_long_rows_agree_with_the_reference(n, left, right):
    leaves, numbers, _ = tensors(n, 2, 4, seed=0, b=1, h=1)
    assert_agree(bucketed, leaves, numbers, left=left, right=right)


def test_rounds_whose_logits_lie_far_apart_are_merged_without_overflow():
    """One round alone would underflow next to the other; a plain exponential would overflow."""
    leaves, numbers, _ = tensors(30, 3, 4, seed=0)
    q, k, v = (u.detach() for u in leaves)
    found = bucketed((300 * q).float(), k.float(), v.float(), numbers, left=5, right=5)
    expected = bucketed(300 * q, k, v, numbers, left=5, right=5, impl="reference")
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)  # logits of 1000 in single precision


def test_a_token_alone_in_its_buckets_gives_its_own_value():
    (q, k, v), numbers, _ = tensors(9, 2, 1, seed=0)
    numbers[..., 4] = 1
    y = bucketed(q, k, v, numbers, left=9, right=9)
    assert torch.equal(y[:, :, 4], v[:, :, 4])
    assert not torch.isclose(y[:, :, :4], v[:, :, :4]).any()


@pytest.fixture
def small_tiles(monkeypatch):
    """The formula behind flex_attention, as a CPU has it; the kernel itself is tested on a GPU."""
    monkeypatch.setattr(tiles, "TILE", 8)
    door = "torch.nn.attention.flex_attention"
    monkeypatch.setattr(f"{door}._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(f"{door}._validate_device", lambda *qkv: None)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("left, right", [(0, 0), (15, 0), (4, 4), (80, 80)])
@pytest.mark.parametrize("buckets", [1, 5, 40])
def test_bands_of_sorted_tokens_agree_with_the_reference(buckets, left, right):
    leaves, numbers, _ = tensors(37, 2, buckets, seed=buckets)
    assert_agree(bucketed, leaves, numbers, left=left, right=right, fast="flex")


@pytest.mark.usefixtures("small_tiles")
@given(n=st.integers(1, 60), left=st.integers(0, 40), right=st.integers(0, 40))
@settings(deadline=None, max_examples=25)
def test_every_visible_pair_lies_in_a_tile_that_is_looked_at_forth_and_back(n, left, right):
    mask = flex.band_mask(torch.zeros(1, 1, n, dtype=torch.long), left, right)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    zero = torch.zeros((), dtype=torch.long)
    visible = mask.mask_mod(zero, zero, i, j)
    pairs = ((mask.kv_num_blocks, mask.kv_indices, visible), (mask.q_num_blocks, mask.q_indices, visible.mT))
    for count, index, wanted in pairs:
        looked_at = torch.zeros(index.shape[2:], dtype=torch.bool)
        for tile, (some, which) in enumerate(zip(count[0, 0], index[0, 0], strict=True)):
            looked_at[tile, which[:some].long()] = True
            assert len(set(which[:some].tolist())) == some
        assert (looked_at[i // 8, j // 8] | ~wanted).all()
    assert torch.equal(visible, (j - i >= -left) & (j - i <= right) & (i != j))
