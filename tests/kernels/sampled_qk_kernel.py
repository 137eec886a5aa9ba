"""The Triton kernel of sampled scores against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.sampled_qk import operator, sampled_qk
from tests.kernels.device import DEVICE
from tests.kernels.graphs import check
from tests.kernels.memory import channel_by_channel, token_by_token

TYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(b, h, n, m, c, s, *, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(b, h, t, c, generator=generator).to(DEVICE, dtype) for t in (n, m))
    sample = torch.randint(m, (b, n, s), generator=generator).to(DEVICE)
    return q, k, sample, torch.randint(s + 1, (b, n), generator=generator).to(DEVICE)


def assert_agrees(q, k, sample, size):
    found = sampled_qk(q, k, sample, size, impl="triton")
    expected = sampled_qk(q.double(), k.double(), sample, size, impl="reference")
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-5)  # sums in single precision


@pytest.mark.parametrize("dtype", TYPES)
def test_the_scores_are_those_of_the_reference(dtype):
    assert_agrees(*draw(2, 3, 7, 40, 64, 50, dtype=dtype))


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 6, 48]), st.integers(1, 20))
@settings(deadline=None, max_examples=6)
def test_any_sizes_agree(h, n, m, c, s):
    assert_agrees(*draw(2, h, n, m, c, s, seed=n))


def test_rows_may_share_a_sample():
    q, k, sample, size = draw(3, 2, 7, 9, 16, 5)
    shared, apart = (sample[:1], size[:1]), (sample[:1].expand(3, -1, -1), size[:1].expand(3, -1))
    for one, other in zip(*(sampled_qk(q, k, *drawn, impl="triton") for drawn in (shared, apart)), strict=True):
        assert torch.equal(one, other)
    assert_agrees(q, k, *shared)


def test_one_key_drawn_every_time_is_no_distance_at_all():
    q, k, sample, size = draw(1, 2, 9, 30, 64, 50)
    _, gap = sampled_qk(q, k, sample[..., :1].expand(-1, -1, 50), size, impl="triton")
    assert (gap == 0).all()


def test_queries_and_keys_may_lie_in_memory_in_any_order():
    q, k, sample, size = draw(2, 3, 5, 8, 16, 6)
    expected = sampled_qk(q, k, sample, size, impl="triton")
    for other_q, other_k in (token_by_token([q, k]), channel_by_channel([q, k])):
        found = sampled_qk(other_q, other_k, sample, size, impl="triton")
        assert all(map(torch.equal, found, expected))


def test_torch_finds_nothing_wrong_with_the_operator():
    check(operator.sampled_qk, *draw(1, 2, 3, 5, 16, 4), differentiable=False)
