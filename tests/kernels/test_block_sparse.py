"""Block-sparse attention: lists and columns as sets, beside the whole matrix; and drawing without replacement."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.block_sparse import block_sparse, choose
from tests.attentions.allowed import assert_same, holes, tensors


@st.composite
def problems(draw):
    """Lists with repeats, gaps and blocks beyond the end; rules in every combination."""
    n, block = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    g, seed = -(-n // block), draw(st.integers(0, 1_000))
    generator = torch.Generator().manual_seed(seed)
    rows, heads = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    lists = torch.randint(-1, g + 1, (rows, heads, g, draw(st.integers(0, 4))), generator=generator)
    columns = None
    if draw(st.booleans()):
        wanted = draw(st.integers(0, 5))
        order = torch.rand(draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3])), n + 3, generator=generator)
        columns = order.argsort(dim=-1)[..., :wanted] - 2  # different places from -2, which is none, to n
    reach = draw(st.none() | st.integers(0, 20))
    rules = {"block": block, "reach": reach, "causal": draw(st.booleans()), "columns": columns}
    return n, lists, {**rules, "key_mask": holes(2, n, seed)}, seed


@given(problems())
@settings(deadline=None, max_examples=60)
def test_the_fast_path_follows_the_law_in_outputs_and_gradients(problem):
    n, lists, rules, seed = problem
    q, k, v = leaves = tensors(2, 3, n, seed=seed)
    if not lists.shape[-1] and (rules["columns"] is None or not rules["columns"].shape[-1]):
        return  # no keys at all: never asked for
    fast = block_sparse(q, k, v, lists, **rules)
    assert_same(fast, block_sparse(q, k, v, lists, **rules, impl="reference"), leaves)


def test_a_block_listed_twice_and_a_column_inside_a_listed_block_count_once():
    q, k, v = tensors(1, 1, 8)
    once = block_sparse(q, k, v, torch.tensor([[[[0], [0]]]]), block=4)
    twice = block_sparse(q, k, v, torch.tensor([[[[0, 0], [0, 0]]]]), block=4, columns=torch.tensor([[[2]]]))
    torch.testing.assert_close(once, twice)
    torch.testing.assert_close(once, torch.softmax(q @ k[:, :, :4].mT / 2, dim=-1) @ v[:, :, :4])


def test_hidden_keys_may_hold_anything_finite():
    q, k, v = (u.detach() for u in tensors(1, 2, 12))
    lists = torch.tensor([[[[0, -1], [1, 7], [2, 1]]]])
    before = block_sparse(q, k, v, lists, block=4)
    k[:, :, 8:], v[:, :, 8:] = 1e4, 1e4
    assert torch.equal(block_sparse(q, k, v, lists, block=4)[:, :, :8], before[:, :, :8])


@given(st.integers(0, 6), st.lists(st.integers(0, 2**31 - 1), min_size=0, max_size=5))
@settings(deadline=None)
def test_chosen_numbers_are_different_and_below_the_count(count, draws):
    chosen = choose(torch.tensor([draws], dtype=torch.long), torch.tensor([count]))[0].tolist()
    taken = [number for number in chosen if number >= 0]
    assert chosen == taken + [-1] * (len(draws) - len(taken))
    assert len(taken) == min(count, len(draws)) == len(set(taken))
    assert all(number < count for number in taken)


@pytest.mark.parametrize("count, r", [(4, 2), (5, 3)])
def test_every_choice_in_every_order_is_equally_likely(count, r):
    draws = torch.tensor(list(itertools.product(*(range(count - i) for i in range(r)))))
    chosen = Counter(map(tuple, choose(draws, torch.full((len(draws),), count)).tolist()))
    assert chosen == Counter(itertools.permutations(range(count), r))
