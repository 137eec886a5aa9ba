"""Attention over diagonals: the reference against a matrix, and the faster paths against the reference."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.diagonals import diagonals
from longspan.kernels.dispatch import HAS_TRITON
from tests.attentions.allowed import assert_same, attention, tensors


@given(
    n=st.integers(1, 20), seed=st.integers(0, 99), way=st.sampled_from(["reference", "short", "long"]), data=st.data()
)
@settings(deadline=None, max_examples=45)
def test_it_is_attention_over_the_pairs_at_these_distances(n, seed, way, data):
    offsets = data.draw(st.lists(st.integers(1 - n, n - 1), min_size=1, unique=True))
    q, k, v = tensors(2, 2, n, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    mask, rows = torch.rand(2, n, generator=generator) < 0.7, torch.randint(2, (2, n), generator=generator)
    lag = torch.arange(n)[:, None] - torch.arange(n)
    allowed = torch.isin(lag, torch.tensor(offsets)) & mask[:, None] & (rows[:, :, None] == rows[:, None])
    with mock.patch("longspan.kernels.diagonals.SHORT", 0 if way == "long" else 20):
        found = diagonals(
            q, k, v, offsets, key_mask=mask, rows=rows, impl="reference" if way == "reference" else "auto"
        )
    assert_same(found, attention(q, k, v, allowed[:, None]), [q, k, v])


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
def test_what_the_kernel_cannot_do_is_refused_with_a_sentence():
    x = torch.zeros(1, 1, 2, 200)
    with pytest.raises(UsageError, match=r"cannot run here.*at most 128 wide, got 200.*impl='auto'"):
        diagonals(x, x, x, [0], impl="triton")
