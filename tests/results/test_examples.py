"""Samples beside a card are returned one by one, and only those that the card was sealed with."""

import contextlib
import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.report.sample_panels import SamplePages
from longspan.results import examples
from longspan.results.card import read as read_card
from longspan.results.examples import CloudSample, PictureSample, SpeechSample, of_file
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


def test_a_model_that_never_stops_is_heard_for_a_minute(tmp_path):
    content = speech(("one",)) | {"made_wave": np.zeros(70 * 22_050, np.int16), "made_wave_edges": [0, 70 * 22_050]}
    (clip,) = of_file(written(tmp_path, content))
    assert len(clip.made) == 60 * 22_050


def test_a_kind_of_ones_own_is_not_drawn(tmp_path):
    assert of_file(written(tmp_path, {"kind": np.array("dances")})) == []


def test_points_that_would_overflow_are_refused(tmp_path):
    with pytest.raises(CorruptFile, match="farther than 10000 from the origin"):
        of_file(written(tmp_path, clouds(("chair",)) | {"partial": np.full((1, 5, 3), 1e300)}))


def test_samples_that_were_changed_after_the_run_are_refused(tmp_path):
    path = add(Store(tmp_path / "cards"), tmp_path / "made", "softmax", "tts_fastspeech2", speech(("one",)))
    card = read_card(path)
    assert [clip.text for clip in examples.read(path.parent, card)] == ["one"]
    written(tmp_path, speech(("two",))).replace(path.parent / card["files"]["samples"])
    with pytest.raises(CorruptFile, match="was changed after the run"):
        examples.read(path.parent, card)
    (path.parent / card["files"]["samples"]).unlink()
    assert examples.read(path.parent, card) == []  # they are large, and need not be kept


def test_a_card_that_names_no_samples_has_none(tmp_path):
    assert examples.read(tmp_path, make_card()) == []


@given(
    st.sampled_from([speech(("one", "two"), 0.05), clouds(("chair",)), pictures(1)]),
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_whatever_bytes_an_array_has_it_is_shown_or_refused(tmp_path_factory, content, which, changes):
    """The archive itself is valid, so that the change reaches the readers."""
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
        assert len(SamplePages().add(make_card(), found).items) == len(found)
