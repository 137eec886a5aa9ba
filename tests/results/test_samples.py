"""Samples beside a card: read back exactly as written; anything else is rejected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.results import samples

EDGES = np.array([0, 5, 9])
SPEECH = {
    "kind": np.array("speech"),
    "text": np.array(["hello, you.", "naïve ☺"]),
    "rate": np.array(22_050),
    **{f"{name}_wave": np.arange(9, dtype=np.int16) for name in ("made", "true")},
    **{f"{name}_mel": np.zeros((9, 80), np.float16) for name in ("made", "true")},
    **{f"{name}_{what}_edges": EDGES for name in ("made", "true") for what in ("wave", "mel")},
}
CLOUDS = {
    "kind": np.array("clouds"),
    "category": np.array(["lamp"]),
    **{name: np.zeros((1, 7, 3), np.float16) for name in ("partial", "completed", "truth")},
}
PICTURES = {
    "kind": np.array("pictures"),
    "low": np.zeros((2, 16, 16, 3), np.uint8),
    **{name: np.zeros((2, 128, 128, 3), np.uint8) for name in ("bicubic", "restored", "truth")},
}
KINDS = {"speech": SPEECH, "clouds": CLOUDS, "pictures": PICTURES}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_read_back_as_they_were_written(tmp_path, kind):
    np.savez_compressed(tmp_path / "samples.npz", allow_pickle=False, **KINDS[kind])
    found = samples.read(tmp_path / "samples.npz")
    assert found.keys() == KINDS[kind].keys()
    for name, values in KINDS[kind].items():
        assert np.array_equal(found[name], values)
        assert found[name].dtype == values.dtype


def test_samples_of_a_kind_of_ones_own_are_kept_but_not_judged(tmp_path):
    np.savez(tmp_path / "samples.npz", kind=np.array("dances"), steps=np.arange(3))
    assert str(samples.read(tmp_path / "samples.npz")["kind"]) == "dances"


WRONG = {
    "no kind": lambda s: s.pop("kind"),
    "a kind of several words": lambda s: s.update(kind=np.array(["speech", "clouds"])),
    "a kind that is a number": lambda s: s.update(kind=np.array(3)),
    "an array that lacks": lambda s: s.pop("made_wave_edges"),
    "sound in floats": lambda s: s.update(made_wave=np.zeros(9, np.float32)),
    "other mels": lambda s: s.update(made_mel=np.zeros((9, 40), np.float16)),
    "mels that are not numbers": lambda s: s.update(made_mel=np.full((9, 80), np.nan, np.float16)),
    "edges beyond the end": lambda s: s.update(made_wave_edges=np.array([0, 5, 10])),
    "edges before the start": lambda s: s.update(made_wave_edges=np.array([-1, 5, 9])),
    "edges that fall": lambda s: s.update(true_mel_edges=np.array([0, 12, 9])),
    "edges of other clips": lambda s: s.update(true_mel_edges=np.array([0, 9])),
    "edges in floats": lambda s: s.update(true_mel_edges=np.array([0.0, 5.0, 9.0])),
    "too many clips": lambda s: s.update(text=np.array(list("abcde"))),
    "no clip": lambda s: s.update(text=np.array([], "U3")),
    "a text of numbers": lambda s: s.update(text=np.zeros(2)),
    "a rate of nothing": lambda s: s.update(rate=np.array(0)),
    "a rate that is no number": lambda s: s.update(rate=np.array("fast")),
}


@pytest.mark.parametrize("harm", WRONG.values(), ids=WRONG)
def test_speech_that_could_not_be_drawn_or_played_is_refused(tmp_path, harm):
    wrong = dict(SPEECH)
    harm(wrong)
    assert samples.fault_of(wrong)
    np.savez(tmp_path / "samples.npz", **wrong)
    with pytest.raises(CorruptFile, match=r"samples\.npz"):
        samples.read(tmp_path / "samples.npz")


@pytest.mark.parametrize(
    "kind, name, values",
    [
        ("clouds", "truth", np.zeros((1, 7, 2), np.float16)),
        ("clouds", "partial", np.zeros((2, 7, 3), np.float16)),
        ("clouds", "completed", np.zeros((1, samples.MOST_POINTS + 1, 3), np.float16)),
        ("clouds", "truth", np.zeros((1, 0, 3), np.float16)),
        ("clouds", "category", np.array("lamp")),
        ("pictures", "low", np.zeros((), np.uint8)),
        ("pictures", "low", np.zeros((9, 16, 16, 3), np.uint8)),
        ("pictures", "restored", np.zeros((2, 64, 64, 3), np.uint8)),
        ("pictures", "truth", np.zeros((2, 128, 128, 3), np.float32)),
        ("pictures", "truth", np.zeros((2, 128, 128), np.uint8)),
    ],
)
def test_clouds_and_pictures_of_other_shapes_are_refused(kind, name, values):
    assert samples.fault_of(KINDS[kind] | {name: values})


@given(
    st.sampled_from(sorted(SPEECH)),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["U2", "O", "f4", "i2", "i8", "u1", "?"]),
)
def test_whatever_stands_in_an_array_the_answer_is_a_sentence_or_none(name, shape, dtype):
    values = np.zeros(shape, dtype)
    fault = samples.fault_of(SPEECH | {name: values})
    assert fault is None or isinstance(fault, str)


def test_a_file_that_would_run_code_is_refused(tmp_path):
    np.savez(tmp_path / "samples.npz", **SPEECH | {"text": np.array(["a", "b"], object)})
    with pytest.raises(CorruptFile, match="objects"):
        samples.read(tmp_path / "samples.npz")


def test_text_that_is_not_unicode_is_refused(tmp_path):
    harmed = np.array([0x110000, 0xD800], "<u4").view("<U1")
    np.savez(tmp_path / "samples.npz", **SPEECH | {"text": harmed})
    with pytest.raises(CorruptFile, match="not Unicode"):
        samples.read(tmp_path / "samples.npz")


def test_a_file_that_unpacks_to_more_than_samples_need_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "samples.npz", kind=np.array("dances"), steps=np.zeros(samples.MAX_BYTES, np.uint8))
    with pytest.raises(CorruptFile, match="more than such a file can need"):
        samples.read(tmp_path / "samples.npz")
