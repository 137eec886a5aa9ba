"""Alignments: the best CTC path is the best of all paths, and every clip gets durations that add up."""

from itertools import groupby, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.datasets.speech import aligner
from longspan.datasets.speech.aligner import Spoken, align, best_path
from longspan.datasets.standins.syllables import make_clip


def labels_of(path):
    return [label for label, _ in groupby(path) if label]


def frames_by_hand(path, count):
    """Blank belongs to the label before, leading blank to the first."""
    frames, at, previous = [0] * count, -1, 0
    for label in path:
        at += bool(label) and label != previous
        frames[max(at, 0)] += 1
        previous = label
    return frames


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_best_path_is_the_best_of_all_paths(data):
    labels = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    fewest = len(labels) + sum(a == b for a, b in pairwise(labels))
    frames = data.draw(st.integers(fewest, 6))
    log_probs = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(frames, 3))
    paths = (path for path in product(range(3), repeat=frames) if labels_of(path) == labels)
    best = max(paths, key=lambda path: sum(log_probs[t, label] for t, label in enumerate(path)))
    found = best_path(log_probs, np.array(labels))
    assert found.tolist() == frames_by_hand(best, len(labels))
    assert found.sum() == frames
    assert found.min() >= 1


def clips(count):
    rng = np.random.Generator(np.random.PCG64(0))
    made = [make_clip(rng) for _ in range(count)]
    return [Spoken(str(i), one.mel.astype(np.float32) / 4 + 1, one.phones) for i, one in enumerate(made)], made


def test_alignments_add_up_and_are_the_same_every_time(monkeypatch):
    monkeypatch.setattr(aligner, "EPOCHS", 2)
    some, _ = clips(9)
    found, again = align(some), align(some)
    for clip, durations, same in zip(some, found, again, strict=True):
        assert durations.tolist() == same.tolist()
        assert len(durations) == len(clip.phones)
        assert durations.sum() == len(clip.mel)
        assert durations.min() >= 1


@pytest.mark.full
def test_the_aligner_finds_the_durations_of_made_up_speech():
    some, made = clips(240)
    off = [
        abs(np.cumsum(found) - np.cumsum(one.durations))[:-1].mean()
        for found, one in zip(align(some), made, strict=True)
    ]
    even = [
        abs(np.cumsum(one.durations) - np.linspace(0, sum(one.durations), len(one.durations) + 1)[1:])[:-1].mean()
        for one in made
    ]
    assert np.mean(off) < 1.0 < np.mean(even), "frames between where a phone ends and where it was found to end"


def test_a_clip_with_fewer_frames_than_phones_is_named():
    with pytest.raises(CorruptFile, match="LJ has 3 frames for 3 phones, which take at least 4; check that the text"):
        align([Spoken("LJ", np.zeros((3, 80)), ["T", "T", "AH0"])])
