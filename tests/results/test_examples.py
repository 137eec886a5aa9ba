"""Samples beside a card are read as data: what does not fit is refused in a sentence, whoever wrote it."""

import contextlib
import io
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.report.sample_panels import SamplePages
from longspan.results import arrays, samples
from longspan.results.card import read as read_card
from longspan.results.samples import CloudSample, PictureSample, SpeechSample, of_file
from longspan.results.store import Store
from tests.report.sample_cards import add, clouds, pictures, speech
from tests.results.factory import make_card


def written(folder, content):
    path = folder / "samples.npz"
    np.savez_compressed(path, allow_pickle=False, **content)
    return path


def test_speech_comes_back_clip_by_clip(tmp_path):
    content = speech(("one", "two: ü <b>"))
    first, second = of_file(written(tmp_path, content))
    assert isinstance(first, SpeechSample)
    assert (first.text, second.text, second.rate) == ("one", "two: ü <b>", 22_050)
    for side in "made", "true":
        for field, array in (side, f"{side}_wave"), (f"{side}_mel", f"{side}_mel"):
            together = np.concatenate([getattr(first, field), getattr(second, field)])
            np.testing.assert_array_equal(together, content[array])


def test_clouds_and_pictures_come_back(tmp_path):
    cloud, _ = of_file(written(tmp_path, clouds(("chair", "sofa"))))
    assert isinstance(cloud, CloudSample)
    assert (cloud.category, cloud.partial.shape, cloud.truth.shape) == ("chair", (2048, 3), (4096, 3))
    picture, *_ = of_file(written(tmp_path, pictures(2)))
    assert isinstance(picture, PictureSample)
    assert (picture.low.shape, picture.restored.shape) == ((16, 16, 3), (128, 128, 3))


def test_a_model_that_said_nothing_has_an_empty_clip(tmp_path):
    content = speech(("one",))
    content |= {"made_wave": np.zeros(0, np.int16), "made_wave_edges": np.array([0, 0])}
    (clip,) = of_file(written(tmp_path, content))
    assert len(clip.made) == 0 < len(clip.true)


def test_of_many_the_first_few_are_kept(tmp_path):
    assert len(of_file(written(tmp_path, speech(tuple("abcdefg"), seconds=0.1)))) == samples.CLIPS == 4
    assert len(of_file(written(tmp_path, clouds(tuple("abcdefgh"))))) == samples.CLOUDS == 6
    assert len(of_file(written(tmp_path, pictures(10)))) == samples.PICTURES == 8


@pytest.mark.parametrize(
    "content, change, sentence",
    [
        (speech, {"kind": "films"}, "kind must be one of speech, clouds, pictures, found 'films'"),
        (speech, {"rate": 10**9}, "rate must be one number from 8000 to 48000"),
        (speech, {"rate": [1, 2]}, "rate must be one number"),
        (speech, {"true_wave_edges": [0, 5]}, "true_wave_edges must rise from 0 to"),
        (speech, {"true_wave_edges": [0.5, 5.0]}, "true_wave_edges must be 2 integers"),
        (speech, {"made_mel_edges": [0, 1, 2]}, "made_mel_edges must be 2 integers"),
        (speech, {"made_wave": np.zeros(int(1.5 * 1.2 * 22_050))}, "made_wave must be one row of 16-bit samples"),
        (speech, {"text": 5}, "no readable array 'text'"),
        (speech, {"text": ["x" * 2001]}, "no readable array 'text'"),
        (clouds, {"truth": np.zeros((1, 5, 2))}, "truth must have the points of 1 clouds, found (1, 5, 2)"),
        (clouds, {"truth": np.zeros((2, 5, 3))}, "truth must have the points of 1 clouds"),
        (clouds, {"partial": np.full((1, 5, 3), np.nan)}, "partial holds numbers that are NaN or infinite"),
        (clouds, {"partial": np.full((1, 5, 3), 1e30)}, "partial has points farther than 10000"),
        (pictures, {"low": np.zeros((3, 16, 16, 3))}, "low must be pictures of bytes"),
        (pictures, {"truth": np.zeros((3, 513, 2, 3), np.uint8)}, "truth must be pictures of bytes, at most 512 wide"),
        (pictures, {"truth": np.zeros((2, 16, 16, 3), np.uint8)}, "truth must be pictures of bytes"),
        (pictures, {"more": np.zeros(2**23)}, "unpacks to"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, content, change, sentence):
    whole = {speech: lambda: speech(("one",)), clouds: lambda: clouds(("chair",)), pictures: pictures}[content]()
    path = written(tmp_path, whole | {name: np.array(value) for name, value in change.items()})
    with pytest.raises(CorruptFile, match=re.escape(sentence)):
        of_file(path)


@pytest.mark.parametrize("missing", ["kind", "text", "rate", "made_wave", "true_mel_edges"])
def test_a_missing_array_is_named(tmp_path, missing):
    content = speech(("one",))
    del content[missing]
    with pytest.raises(CorruptFile, match=f"no array '{missing}'"):
        of_file(written(tmp_path, content))


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
@settings(max_examples=30)
def test_texts_come_back_as_they_were_written(tmp_path_factory, words):
    words = [word.rstrip("\0") for word in words]  # NumPy fills texts with zeros
    path = written(tmp_path_factory.mktemp("texts"), {"text": np.array(words)})
    assert arrays.texts(path, "text") == [word.encode("utf-8", "replace").decode() for word in words]


def test_letters_that_unicode_does_not_have_are_refused(tmp_path):
    path = written(tmp_path, {"text": np.frombuffer(np.array([0x7FFFFFFF], "<u4").tobytes(), "<U1")})
    with pytest.raises(CorruptFile, match="no readable array 'text'"):
        arrays.texts(path, "text")


def test_numbers_are_no_texts_and_texts_no_numbers(tmp_path):
    path = written(tmp_path, {"number": np.arange(3), "text": np.array(["a"])})
    with pytest.raises(CorruptFile, match="not an array of at most 1024 texts"):
        arrays.texts(path, "number")
    with pytest.raises(CorruptFile, match="it holds text, not numbers"):
        arrays.read(path, "text")


def test_samples_that_were_changed_after_the_run_are_refused(tmp_path):
    path = add(Store(tmp_path / "cards"), tmp_path / "made", "softmax", "tts_fastspeech2", speech(("one",)))
    card = read_card(path)
    assert [clip.text for clip in samples.read(path.parent, card)] == ["one"]
    written(tmp_path, speech(("two",))).replace(path.parent / card["files"]["samples"])
    with pytest.raises(CorruptFile, match="was changed after the run"):
        samples.read(path.parent, card)
    (path.parent / card["files"]["samples"]).unlink()
    with pytest.raises(CorruptFile, match="is missing beside the card"):
        samples.read(path.parent, card)


def test_a_card_that_names_no_samples_has_none(tmp_path):
    assert samples.read(tmp_path, make_card()) == []


@given(
    st.sampled_from([speech(("one", "two"), 0.05), clouds(("chair",)), pictures(1)]),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_whatever_bytes_an_array_has_it_is_read_or_refused(tmp_path_factory, content, which, changes):
    """The archive itself is sound, so that the change reaches the readers."""
    name = sorted(content)[which % len(content)]
    path = tmp_path_factory.mktemp("changed") / "samples.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in content.items():
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            data = bytearray(file.getvalue())
            for place, byte in changes if key == name else ():
                data[int(place * min(len(data), 200))] = byte  # the header, and the first numbers
            archive.writestr(f"{key}.npy", bytes(data))
    found = []
    with contextlib.suppress(CorruptFile):
        found = of_file(path)
    if found:
        assert len(SamplePages().add(make_card(), found).items) == len(found)  # what is read can be shown
