"""Speech distortion: hand-checked warpings and scores, and agreement with plain DTW for any matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.metrics import speech
from longspan.metrics.speech import dtw, frame_distances, mcd_msd, over_corpus


def between(reference, made):
    return frame_distances(torch.tensor(reference)[None, :, None], torch.tensor(made)[None, :, None])


def plain_dtw(distance):
    """Cell by cell: predecessors in order of preference; the first of the cheapest is taken."""
    n, m = distance.shape
    table = {}
    for i in range(n):
        for j in range(m):
            before = [table[cell] for cell in ((i, j - 1), (i - 1, j - 1), (i - 1, j)) if cell in table]
            cost, steps = min(before, key=lambda each: each[0], default=(0.0, 0))
            table[i, j] = cost + float(distance[i, j]), steps + 1
    return table[n - 1, m - 1]


def test_the_distance_of_two_frames():
    distance = frame_distances(torch.tensor([[[0.0, 0.0]]]), torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    assert distance.tolist() == [[[pytest.approx(3.535534, abs=1e-6), 0.0]]]


@pytest.mark.parametrize(
    "reference, made, cost, steps",
    [
        ([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 3.0], 1, 4),
        ([0.0, 0.0, 4.0], [0.0, 4.0, 4.0, 4.0], 0, 5),
        ([1.0, 3.0], [2.0, 2.0], 2, 2),
        ([5.0], [5.0], 0, 1),
        ([5.0], [5.0, 6.0, 8.0], 4, 3),
        ([5.0, 6.0, 8.0], [5.0], 4, 3),
    ],
)
def test_warpings_by_hand(reference, made, cost, steps):
    found, path = dtw(between(reference, made))
    assert (found.item(), path.item()) == (cost, steps)


def test_equal_costs_come_from_the_left_then_from_the_diagonal_then_from_above():
    left_or_diagonal = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    assert dtw(left_or_diagonal)[1].item() == 4  # down the first column and then right, not across at once
    assert dtw(left_or_diagonal.mT.contiguous())[1].item() == 3  # the diagonal is preferred to the step from above
    assert dtw(torch.zeros(1, 3, 3))[1].item() == 5


def test_scores_of_a_corpus_by_hand():
    clips = [([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 3.0]), ([1.0, 3.0], [2.0, 2.0])]
    costs, steps = (torch.cat(each).numpy() for each in zip(*(dtw(between(*clip)) for clip in clips), strict=True))
    assert over_corpus(costs, np.array([len(made) for _, made in clips])) == pytest.approx(0.6)
    assert over_corpus(costs, np.array([len(reference) for reference, _ in clips])) == pytest.approx(0.5)
    assert over_corpus(costs, steps) == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10_000),
)
@settings(max_examples=100)
def test_a_batch_is_warped_as_the_plain_table_says(sizes, levels, dtype, seed):
    """Few levels make many ties; small integers are added without rounding."""
    rng = np.random.default_rng(seed)
    rows, columns = (torch.tensor(side) for side in zip(*sizes, strict=True))
    distance = torch.from_numpy(rng.integers(0, levels, size=(len(sizes), rows.max(), columns.max()))).to(dtype)
    costs, steps = dtw(distance, rows, columns)
    expected = [plain_dtw(each[:n, :m]) for each, (n, m) in zip(distance, sizes, strict=True)]
    assert list(zip(costs.tolist(), steps.tolist(), strict=True)) == expected


def clips(seed, *lengths):
    generator = torch.Generator().manual_seed(seed)
    waves = [torch.randn(n, generator=generator) * torch.linspace(0, 0.3, n) for n in lengths]
    return torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor(lengths)


def test_a_clip_against_itself_scores_0():
    waves, lengths = clips(0, 6000, 3001, 700)
    found = mcd_msd(waves, waves, reference_lengths=lengths, made_lengths=lengths)
    assert found.mcd.tolist() == found.msd.tolist() == [0.0, 0.0, 0.0]
    assert found.mcd_steps.tolist() == found.made_frames.tolist() == [22, 11, 3]


def test_swapping_the_sides_changes_the_denominator_only():
    (reference, n), (made, m) = clips(1, 5000, 2500), clips(2, 4000, 6100)
    there = mcd_msd(reference, made, reference_lengths=n, made_lengths=m)
    back = mcd_msd(made, reference, reference_lengths=m, made_lengths=n)
    torch.testing.assert_close(there.mcd, back.mcd)
    torch.testing.assert_close(there.msd, back.msd)
    assert there.made_frames.tolist() == back.reference_frames.tolist() == [15, 23]
    assert there.reference_frames.tolist() == back.made_frames.tolist() == [19, 10]


def test_clips_score_alone_and_a_few_at_a_time_as_they_do_together(monkeypatch):
    (reference, n), (made, m) = clips(3, 5000, 2500, 900), clips(4, 4000, 6100, 0)
    together = mcd_msd(reference, made, reference_lengths=n, made_lengths=m)
    monkeypatch.setattr(speech, "CELLS", 1)
    few = mcd_msd(reference, made, reference_lengths=n, made_lengths=m)
    for row in range(3):
        alone = mcd_msd(reference[row : row + 1, : n[row]], made[row : row + 1, : m[row]])
        for found in together, few:
            torch.testing.assert_close(found.mcd[row : row + 1], alone.mcd, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(found.msd[row : row + 1], alone.msd, rtol=1e-4, atol=1e-3)


def test_speech_that_is_not_a_number_has_no_score():
    waves, lengths = clips(5, 3000)
    assert math.isnan(mcd_msd(waves, waves * math.nan, reference_lengths=lengths).mcd.item())
