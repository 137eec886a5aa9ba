"""Layers of the speech networks: fairseq's positions, and a convolution equal to torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.backbones.speech_layers import Convolution, ScaledPositions
from longspan.core.errors import UsageError


def test_the_first_token_is_at_position_two_and_padding_has_none_wherever_it_lies():
    positions = ScaledPositions(6, 8)
    x = torch.zeros(2, 4, 8)
    mask = torch.tensor([[True, True, True, False], [False, False, True, True]])
    got = positions(x, mask)
    first = [0.909297, 0.092699, 0.004309, 0.0002, -0.416147, 0.995694, 0.999991, 1.0]
    torch.testing.assert_close(got[0, 0], torch.tensor(first), atol=1e-6, rtol=0)
    torch.testing.assert_close(got[1, 2:], got[0, :2])
    assert not got[~mask].any()
    torch.testing.assert_close(positions(x[:1, :1], first=2)[0, 0], got[0, 2])


def test_positions_are_scaled_by_a_learned_number():
    positions = ScaledPositions(6, 8)
    one = positions(torch.zeros(1, 3, 8))
    with torch.no_grad():
        positions.alpha.fill_(2.5)
    torch.testing.assert_close(positions(torch.zeros(1, 3, 8)), 2.5 * one)


def test_a_row_longer_than_the_places_is_refused():
    with pytest.raises(UsageError, match="has 6 places, but a row of 7 came in"):
        ScaledPositions(6, 8)(torch.zeros(1, 2, 8), first=5)


@given(st.integers(1, 3), st.integers(1, 12), st.sampled_from([1, 3, 9]))
def test_the_convolution_is_torchs(rows, places, width):
    torch.manual_seed(0)
    convolution = Convolution(4, 6, width).double()
    x = torch.randn(rows, places, 4).double()
    expected = torch.nn.functional.conv1d(x.mT, convolution.weight, convolution.bias, padding=width // 2).mT
    torch.testing.assert_close(convolution(x), expected)
    mask = torch.arange(places) < 3
    hidden = torch.where(mask[:, None], x, 99.0)
    mask = mask.expand(rows, -1)
    torch.testing.assert_close(convolution(hidden, mask), convolution(x * mask[..., None]))
