"""Greedy decoding: a row ends at its first end token but not before the minimum, and finished rows cost nothing."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.backbones.greedy import Limits, greedy
from longspan.core.errors import UsageError

END, PAD = 1, 0
VOCABULARY = 6


@dataclass
class Scripts:
    """A network without weights: at position t row i prefers the token `scripts[i][t]`, then END or token 2."""

    scripts: torch.Tensor
    place: int = 0

    def select(self, rows):
        return Scripts(self.scripts[rows], self.place)

    def logits(self):
        favourite = torch.nn.functional.one_hot(self.scripts[:, self.place], VOCABULARY) * 2.0
        favourite[:, 2] += 1.0  # second best
        return favourite


def play(scripts, longest, shortest=0, stop="row"):
    """The tokens written, and the number of rows each step computed."""
    rows = []

    def step(token, state):
        rows.append(len(token))
        assert len(token) == len(state.scripts)
        following = Scripts(state.scripts, state.place + 1)
        return following.logits(), following

    start = Scripts(torch.tensor(scripts))
    written = greedy(start.logits(), start, step, Limits(END, PAD, longest, shortest, stop))
    return written.tolist(), rows


def by_hand(script, longest, shortest):
    written = []
    for place in range(longest):
        token = script[place]
        written.append(2 if token == END and place < shortest else token)
        if written[-1] == END:
            break
    return written + [PAD] * (longest - len(written))


@settings(deadline=None)
@given(st.data())
def test_each_row_is_written_as_if_it_were_alone(data):
    longest = data.draw(st.integers(1, 7))
    shortest = data.draw(st.integers(0, longest))
    row = st.lists(st.integers(1, VOCABULARY - 1), min_size=longest, max_size=longest)
    scripts = data.draw(st.lists(row, min_size=1, max_size=5))
    written, rows = play(scripts, longest, shortest)
    assert written == [by_hand(script, longest, shortest) for script in scripts]
    going = [[sum(END not in line[: t + 1] for line in written)] for t in range(longest - 1)]
    assert rows == [count for (count,) in going if count], "a finished row takes no further step"


def test_a_finished_row_is_frozen_and_padded():
    written, rows = play([[3, END, 4, 5], [3, 4, 5, END]], longest=4)
    assert written == [[3, END, PAD, PAD], [3, 4, 5, END]]
    assert rows == [2, 1, 1]


def test_the_end_is_forbidden_until_the_shortest_length_and_cut_at_the_longest():
    assert play([[END, END, END, 3]], longest=4, shortest=2)[0] == [[2, 2, END, PAD]]
    assert play([[3, 4, 5, 3]], longest=4)[0] == [[3, 4, 5, 3]]


@pytest.mark.parametrize("longest, shortest", [(0, 0), (3, 4), (3, -1)])
def test_limits_that_cannot_be_are_refused(longest, shortest):
    with pytest.raises(UsageError, match="shortest <= longest"):
        play([[3, 3, 3]], longest, shortest)


def test_a_batch_that_stops_together_goes_on_after_the_end_tokens_of_single_rows():
    """ParaGen's search: row 0 ends at position 1 and keeps writing; at position 3 both end, and that is not written."""
    scripts = [[3, END, 4, END, 5], [3, 4, END, END, 5]]
    written, rows = play(scripts, 5, stop="batch")
    assert written == [[3, END, 4, PAD, PAD], [3, 4, END, PAD, PAD]]
    assert rows == [2, 2, 2]
    assert play(scripts, 5)[0] == [[3, END, PAD, PAD, PAD], [3, 4, END, PAD, PAD]]


def test_a_batch_that_never_ends_at_once_is_written_to_its_full_length():
    written, _ = play([[END, 3, END], [3, END, 3]], 3, stop="batch")
    assert written == [[END, 3, END], [3, END, 3]]
    assert play([[END, END, END]], 3, shortest=1, stop="batch")[0] == [[2, PAD, PAD]]
