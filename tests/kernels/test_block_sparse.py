"""Block-sparse attention compared with the dense matrix: lists, windows, overlapping blocks, strides, global rows."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.block_sparse import (
    block_sparse,
    overlapping_blocks,
    sample_without_replacement,
    sliding_window,
    strided,
    with_global_queries,
)
from longspan.kernels.block_sparse.gather import skewed
from tests.attentions.allowed import assert_same, attention, holes, pairs, tensors


@st.composite
def problems(draw):
    """Lists with repeats, gaps and blocks beyond the end; rules in every combination."""
    n, block = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    g, seed = -(-n // block), draw(st.integers(0, 1_000))
    generator = torch.Generator().manual_seed(seed)
    rows, heads = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    lists = torch.randint(-1, g + 1, (rows, heads, g, draw(st.integers(0, 4))), generator=generator)
    global_keys = None
    if draw(st.booleans()):
        wanted = draw(st.integers(0, 5))
        order = torch.rand(draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3])), n + 3, generator=generator)
        global_keys = order.argsort(dim=-1)[..., :wanted] - 2  # distinct positions from -2 (none) to n
    reach = draw(st.none() | st.integers(0, 20))
    rules = {"block": block, "reach": reach, "causal": draw(st.booleans()), "global_keys": global_keys}
    return n, lists, {**rules, "key_mask": holes(2, n, seed)}, seed


@given(problems())
@settings(deadline=None, max_examples=60)
def test_gathered_blocks_agree_with_the_reference_in_outputs_and_gradients(problem):
    n, lists, rules, seed = problem
    q, k, v = leaves = tensors(2, 3, n, seed=seed)
    if not lists.shape[-1] and (rules["global_keys"] is None or not rules["global_keys"].shape[-1]):
        return  # no keys at all: does not occur
    fast = block_sparse(q, k, v, lists, **rules)
    assert_same(fast, block_sparse(q, k, v, lists, **rules, impl="reference"), leaves)


def test_a_block_listed_twice_and_a_global_key_inside_a_listed_block_count_once():
    q, k, v = tensors(1, 1, 8)
    once = block_sparse(q, k, v, torch.tensor([[[[0], [0]]]]), block=4)
    twice = block_sparse(q, k, v, torch.tensor([[[[0, 0], [0, 0]]]]), block=4, global_keys=torch.tensor([[[2]]]))
    torch.testing.assert_close(once, twice)
    torch.testing.assert_close(once, torch.softmax(q @ k[:, :, :4].mT / 2, dim=-1) @ v[:, :, :4])


def test_hidden_keys_may_hold_anything_finite():
    q, k, v = (u.detach() for u in tensors(1, 2, 12))
    lists = torch.tensor([[[[0, -1], [1, 7], [2, 1]]]])
    before = block_sparse(q, k, v, lists, block=4)
    k[:, :, 8:], v[:, :, 8:] = 1e4, 1e4
    assert torch.equal(block_sparse(q, k, v, lists, block=4)[:, :, :8], before[:, :, :8])


@pytest.mark.parametrize("n", [1, 63, 1000])
@pytest.mark.parametrize("left, right", [(0, 0), (16, 16), (15, 0), (40, 90), (5000, 5000)])
def test_a_window_agrees_with_the_reference(n, left, right):
    q, k, v = (u.detach() for u in tensors(2, 1, n))
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.8
    for key_mask in (None, mask):
        options = {"left": left, "right": right, "key_mask": key_mask}
        expected = sliding_window(q, k, v, **options, impl="reference")
        torch.testing.assert_close(sliding_window(q, k, v, **options), expected)


def test_few_tokens_far_apart_see_as_far_as_the_window_says():
    q, k, v = (u.detach() for u in tensors(1, 2, 3))
    sides = {"left": 4, "right": 4, "positions": torch.tensor([[0, 4, 9]])}
    found = sliding_window(q, k, v, **sides)
    torch.testing.assert_close(found, sliding_window(q, k, v, **sides, impl="reference"))
    assert (found[:, :, 0] - v[:, :, 0]).abs().max() > 1e-3  # the first token sees the second


@pytest.mark.parametrize("n", [1, 63, 130])
@pytest.mark.parametrize(
    "block, overlap, causal", [(1, 0, False), (8, 0, True), (8, 3, False), (8, 11, True), (500, 9, True)]
)
def test_overlapping_blocks_agree_with_the_reference(n, block, overlap, causal):
    q, k, v = (u.detach() for u in tensors(2, 2, n))
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.8
    for key_mask in (None, mask):
        options = {"block": block, "overlap": overlap, "causal": causal, "key_mask": key_mask}
        expected = overlapping_blocks(q, k, v, **options, impl="reference")
        torch.testing.assert_close(overlapping_blocks(q, k, v, **options), expected)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 25), st.booleans(), st.integers(0, 1_000))
@settings(deadline=None, max_examples=50)
def test_blocks_with_a_bias_agree_with_the_reference_in_outputs_and_gradients(n, block, overlap, causal, seed):
    leaves = tensors(2, 2, n, seed=seed)
    bias = torch.randn(2, block, block + 2 * overlap, dtype=leaves[0].dtype).requires_grad_()
    rules = {"block": block, "overlap": overlap, "causal": causal, "key_mask": holes(2, n, seed), "bias": bias}
    found, expected = overlapping_blocks(*leaves, **rules), overlapping_blocks(*leaves, **rules, impl="reference")
    assert_same(found, expected, [*leaves, bias])


@given(st.integers(1, 50), st.integers(1, 60), st.booleans(), st.booleans(), st.integers(0, 1_000))
@settings(deadline=None, max_examples=50)
def test_strides_agree_with_the_reference_in_outputs_and_gradients(n, stride, near, causal, seed):
    q, k, v = leaves = tensors(2, 2, n, seed=seed)
    rules = {"stride": stride, "near": near, "causal": causal, "key_mask": holes(2, n, seed)}
    assert_same(strided(q, k, v, **rules), strided(q, k, v, **rules, impl="reference"), leaves)


def test_dropout_of_strided_attention_acts_on_the_weights():
    q, k, v = tensors(1, 2, 30)
    torch.manual_seed(0)
    assert not torch.equal(strided(q, k, v, stride=5, dropout=0.5), strided(q, k, v, stride=5, dropout=0.5))


@pytest.mark.parametrize(
    "positions, ends",
    [([[0, 1]], (2, 0)), ([[0, 7, 8]], (1, 2)), ([[0, 3]], None), ([[2, -1], [8, 9]], None)],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_global_queries_see_all_real_keys_and_other_rows_stay(positions, ends, causal, seed):
    n = 9
    q, k, v = leaves = tensors(2, 2, n, seed=seed)
    mask, rows = holes(2, n, seed), positions * (2 // len(positions))
    allowed = pairs(lambda r, h, i, j: j <= i or not causal, 2, 2, n, mask)
    is_global = torch.tensor([[i in row for i in range(n)] for row in rows])[:, None, :, None]
    expected = torch.where(is_global, attention(q, k, v, allowed), v * 2)
    options = {"causal": causal, "key_mask": mask, "ends": ends}
    assert_same(with_global_queries(v * 2, q, k, v, torch.tensor(positions), **options), expected, leaves)


@given(st.integers(0, 6), st.lists(st.integers(0, 2**31 - 1), min_size=0, max_size=5))
@settings(deadline=None)
def test_chosen_numbers_are_different_and_below_the_count(count, draws):
    chosen = sample_without_replacement(torch.tensor([draws], dtype=torch.long), torch.tensor([count]))[0].tolist()
    taken = [number for number in chosen if number >= 0]
    assert chosen == taken + [-1] * (len(draws) - len(taken))
    assert len(taken) == min(count, len(draws)) == len(set(taken))
    assert all(number < count for number in taken)


@pytest.mark.parametrize("count, r", [(4, 2), (5, 3)])
def test_every_choice_in_every_order_is_equally_likely(count, r):
    draws = torch.tensor(list(itertools.product(*(range(count - i) for i in range(r)))))
    chosen = Counter(map(tuple, sample_without_replacement(draws, torch.full((len(draws),), count)).tolist()))
    assert chosen == Counter(itertools.permutations(range(count), r))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_skewed_moves_each_row_by_its_number(rows, w, width):
    scores = torch.rand(1, 1, rows, w)
    found = skewed(scores, width)
    assert found.shape == (1, 1, rows, width)
    for i in range(rows):
        here = min(width - i, w)
        if here > 0:
            torch.testing.assert_close(found[0, 0, i, i : i + here], scores[0, 0, i, :here])
