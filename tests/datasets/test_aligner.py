"""Alignments: the best path is the best of all paths, and every clip gets durations that add up and fit."""

from itertools import groupby, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.datasets.speech import aligner
from longspan.datasets.speech.aligner import Spoken, align, best_path, start
from longspan.datasets.speech.flat_start import _best, durations
from longspan.datasets.speech.phonemes import Phonemes
from longspan.datasets.standins.syllables import LEXICON, make_clip


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
    speaker = Phonemes(LEXICON)
    return [Spoken(str(i), one.mel, speaker.words(one.text)) for i, one in enumerate(made)], made


def by_hmm(some):
    return [durations(owners, len(clip.phones)) for owners, clip in zip(start(some), some, strict=True)]


def frames_off(found, made):
    """The mean distance between a phone's true end and the one found."""
    pairs = zip(found, made, strict=True)
    return np.mean([abs(np.cumsum(one) - np.cumsum(clip.durations))[:-1].mean() for one, clip in pairs])


@pytest.mark.parametrize("method", [by_hmm, align])
def test_alignments_add_up_and_are_the_same_every_time(method, monkeypatch):
    monkeypatch.setattr(aligner, "EPOCHS", 3)
    some, _ = clips(9)
    found, again = method(some), method(some)
    for clip, frames, same in zip(some, found, again, strict=True):
        assert frames.tolist() == same.tolist()
        assert len(frames) == len(clip.phones)
        assert frames.sum() == len(clip.mel)
        assert frames.min() >= 1


def test_gaussians_find_the_durations_of_made_up_speech():
    some, made = clips(120)
    even = [np.diff(np.linspace(0, len(clip.mel), len(clip.durations) + 1)) for clip in made]
    assert frames_off(by_hmm(some), made) < 0.1 < 1 < frames_off(even, made)


@pytest.mark.full
def test_the_network_finds_the_durations_of_made_up_speech():
    some, made = clips(240)
    assert frames_off(align(some), made) < 1


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_best_chain_is_the_best_of_all_chains(data):
    optional = np.array([True, *data.draw(st.lists(st.booleans(), min_size=1, max_size=2)), False, True])
    optional[1:-1] &= ~np.roll(optional, 1)[1:-1]  # two in a row do not occur
    frames = data.draw(st.integers(len(optional) - 2, 5))
    emitted = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(frames, len(optional)))

    def allowed(path):
        steps = [*pairwise((-1, *path)), (path[-1], len(optional))]
        return all(b == a >= 0 or (b > a and optional[a + 1 : b].all()) for a, b in steps)

    paths = [path for path in product(range(len(optional)), repeat=frames) if allowed(path)]
    best = max(paths, key=lambda path: sum(emitted[t, state] for t, state in enumerate(path)))
    assert tuple(_best(emitted, optional)) == best


def test_silence_belongs_to_the_phone_before_and_at_the_beginning_to_the_first():
    assert durations(np.array([-1, -1, 0, 0, -1, 1, 2, 2, -1]), 3).tolist() == [5, 1, 3]


def test_a_clip_with_fewer_frames_than_phones_is_named():
    with pytest.raises(CorruptFile, match="LJ has 3 frames for 3 phones, which take at least 4; check that the text"):
        align([Spoken("LJ", np.zeros((3, 80)), [["T"], ["T", "AH0"]])])
