"""Frames one after another: a row ends where it stops, whatever its neighbours do."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.backbones.continuous import Ending, generate
from longspan.core.errors import UsageError


@dataclass
class Told:
    """Rows with given stop probabilities."""

    chances: torch.Tensor
    place: int = 0

    def select(self, rows):
        return Told(self.chances[rows], self.place)


def step(frame, state):
    return frame + 1, state.chances[:, state.place].logit(), Told(state.chances, state.place + 1)


def test_a_row_keeps_the_step_at_which_it_stops():
    frames, lengths = generate(torch.zeros(1, 4), Told(torch.tensor([[0.1, 0.6, 0.9]])), step, Ending(3))
    assert lengths.tolist() == [2]
    assert frames[0].tolist() == [[1.0] * 4, [2.0] * 4]


def test_one_half_is_not_likelier_than_not():
    _, lengths = generate(torch.zeros(1, 2), Told(torch.tensor([[0.5, 0.5, 0.51]])), step, Ending(3))
    assert lengths.tolist() == [3]


@given(st.lists(st.lists(st.floats(0.01, 0.99), min_size=6, max_size=6), min_size=1, max_size=4))
def test_no_row_depends_on_the_others_and_fairseqs_loop_only_adds_what_follows(chances):
    chances = torch.tensor(chances)
    first = torch.arange(len(chances), dtype=torch.float32)[:, None]
    frames, lengths = generate(first, Told(chances), step, Ending(6))
    expected = [next((i + 1 for i, p in enumerate(row) if p > 0.5), 6) for row in chances.tolist()]
    assert lengths.tolist() == expected
    assert frames.shape[1] == max(expected)
    together, same = generate(first, Told(chances), step, Ending(6, together=True))
    assert same.tolist() == expected
    assert together.shape == frames.shape
    for row, length in enumerate(expected):
        alone, _ = generate(first[row : row + 1], Told(chances[row : row + 1]), step, Ending(6))
        assert torch.equal(alone[0], frames[row, :length])
        assert torch.equal(together[row, :length], frames[row, :length])
        assert not frames[row, length:].any()
        assert together[row, length:].all()


@pytest.mark.parametrize("longest", [1, 3])
def test_a_row_that_never_stops_ends_at_the_limit(longest):
    frames, lengths = generate(torch.zeros(2, 1), Told(torch.zeros(2, 5)), step, Ending(longest))
    assert (frames.shape[1], lengths.tolist()) == (longest, [longest] * 2)


def test_nothing_to_generate_is_refused():
    with pytest.raises(UsageError, match="1 frame or more, got longest=0"):
        generate(torch.zeros(1, 1), Told(torch.zeros(1, 1)), step, Ending(0))
