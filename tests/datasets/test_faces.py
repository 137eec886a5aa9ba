"""Faces: pairs bit-identical to the original preparation, splits as stated, and an error for each unfit file."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from longspan.cli import app
from longspan.core.errors import CorruptFile, DataDamaged, DataMissing, UsageError
from longspan.datasets import faces, get
from longspan.datasets.super_resolution import layouts, pairs
from longspan.datasets.super_resolution.pairs import pair_of, read_pair, square


def picture(seed: int, width: int = 160, height: int = 130) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def fill(folder, names, seed=0):
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed + i).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A few pictures in the layout of FFHQ, and the first hundred numbers of CelebA-HQ."""
    root = tmp_path_factory.mktemp("published")
    fill(root / "ffhq", [f"{number // 1_000:02d}000/{number:05d}.png" for number in range(990, 1_020)])
    fill(root / "celebahq", [f"{number:05d}.jpg" for number in range(104)], seed=100)
    return root


# ---------------------------------------------------------------------------------------------------------------- pairs


def test_golden_triples_are_reproduced_to_the_bit(reference):
    folder = reference("faces/golden_16_128")
    low, upsampled, high = (Image.open(folder / part / "00031.png") for part in ("lr_16", "sr_16_128", "hr_128"))
    made = pair_of(low, 16, 128)
    np.testing.assert_array_equal(made.upsampled, np.array(upsampled))
    np.testing.assert_array_equal(made.low, np.array(low))
    near = np.array(square(high, 16)).astype(int) - np.array(low)
    assert abs(near).max() <= 1  # the original was made from 1,024 pixels, not from 128


def test_the_larger_golden_triples_are_reproduced_too(reference):
    folder = reference("faces/golden_64_512")
    for name in ("celebahq", "ffhq"):
        low, upsampled = (
            np.array(Image.open(folder / f"{name}_{part}.png").convert("RGB")) for part in ("lr_64", "sr_64_512")
        )
        np.testing.assert_array_equal(pair_of(Image.fromarray(low), 64, 512).upsampled, upsampled)


def test_a_picture_that_has_the_side_already_is_not_resized():
    small = picture(0, 16, 16)
    np.testing.assert_array_equal(np.array(square(small, 16)), np.array(small))


@settings(deadline=None, max_examples=30)
@given(st.integers(32, 90), st.integers(32, 90))
def test_any_shape_gives_squares_from_the_centre(width, height):
    pair = pair_of(picture(1, width, height), 8, 32)
    assert [part.shape for part in pair] == [(8, 8, 3), (32, 32, 3), (32, 32, 3)]
    short = min(width, height)
    centre = picture(1, width, height)
    if short == 32:
        left, top = round((width - 32) / 2), round((height - 32) / 2)
        np.testing.assert_array_equal(pair.high, np.array(centre)[top : top + 32, left : left + 32])


# ------------------------------------------------------------------------------------------------------ malformed files


def test_a_truncated_file_is_refused(tmp_path):
    picture(0).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptFile, match=r"a\.png is not a readable"):
        read_pair(tmp_path / "a.png", 16, 128)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P"])
def test_a_picture_that_is_not_plain_colour_is_refused_with_its_mode(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    picture(0).convert(mode).save(path)
    with pytest.raises(CorruptFile, match=f"mode {mode}"):
        read_pair(path, 16, 128)


def test_a_picture_smaller_than_the_high_side_is_refused(tmp_path):
    picture(0, 200, 127).save(tmp_path / "a.png")
    with pytest.raises(CorruptFile, match="200 x 127"):
        read_pair(tmp_path / "a.png", 16, 128)


def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    picture(0).save(tmp_path / "a.png")
    monkeypatch.setattr(pairs, "MOST_PIXELS", 1_000)
    with pytest.raises(CorruptFile, match="unpacks to 160 x 130"):
        read_pair(tmp_path / "a.png", 16, 128)
    monkeypatch.undo()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    with pytest.raises(CorruptFile, match="not a readable"):
        read_pair(tmp_path / "a.png", 16, 128)


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_picture_or_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "a.png"
    path.write_bytes(content)
    with pytest.raises(CorruptFile):
        read_pair(path, 16, 128)


def test_one_bad_file_stops_an_import_and_leaves_what_was_there(tmp_path):
    fill(tmp_path / "good", [f"{i}.png" for i in range(12)])
    get("faces").import_from(tmp_path / "good", root=tmp_path / "data")
    before = get("faces").status(root=tmp_path / "data")
    (tmp_path / "good" / "5.png").write_bytes(b"no picture")
    with pytest.raises(CorruptFile, match=r"5\.png"):
        get("faces").import_from(tmp_path / "good", root=tmp_path / "data")
    assert get("faces").status(root=tmp_path / "data") == before


# --------------------------------------------------------------------------------------------------------------- splits


def test_all_of_ffhq_trains_and_the_first_hundred_numbers_of_celeba_hq_are_the_test(published, tmp_path):
    splits = get("faces").import_from([published / "ffhq", published / "celebahq"], root=tmp_path)
    assert splits.variant == "imported"  # 30 pictures are not the 70,000
    assert splits.manifest["test_pictures"] == [f"{number:05d}" for number in range(100)]
    assert splits.counts == {"train": 27, "valid": 3, "test": 100}
    expected = read_pair(published / "celebahq" / "00042.jpg", 16, 128)
    for found, made in zip(splits.test.example(42), expected, strict=True):
        np.testing.assert_array_equal(found, made)


def test_both_folders_are_found_in_one_that_has_them(published, tmp_path):
    assert get("faces").import_from(published, root=tmp_path).counts["test"] == 100


def test_a_missing_number_of_the_test_is_an_error(published, tmp_path):
    fill(tmp_path / "celebahq", [f"{number:05d}.jpg" for number in range(100) if number != 57])
    with pytest.raises(DataMissing, match="no picture 00057"):
        layouts.find([published / "ffhq", tmp_path / "celebahq"])


def test_complete_sets_are_official(published, monkeypatch):
    monkeypatch.setattr(layouts, "FFHQ", 10)
    monkeypatch.setattr(layouts, "CELEBA_HQ", 104)
    ten = published / "ten"
    fill(ten, [f"{number:05d}.png" for number in range(10)])
    assert layouts.find([ten, published / "celebahq"]).variant == "official"
    assert layouts.find([published / "ffhq", published / "celebahq"]).variant == "imported"


def test_pictures_of_ffhq_are_verified_by_its_list_where_that_is_at_hand(tmp_path, published):
    folder = fill(tmp_path / "ffhq", ["00000.png", "00001.png"])
    md5 = hashlib.md5((folder / "00000.png").read_bytes()).hexdigest()
    entry = {"image": {"file_md5": "0" * 32}, "thumbnail": {"file_md5": md5}}
    (folder / "ffhq-dataset-v2.json").write_text(json.dumps({"0": entry, "1": entry}))
    found = layouts.find([folder, published / "celebahq"])
    layouts.check_digest(folder / "00000.png", found)
    with pytest.raises(CorruptFile, match="00001"):
        layouts.check_digest(folder / "00001.png", found)


def test_two_files_of_one_number_and_names_that_are_none_are_refused(tmp_path, published):
    fill(tmp_path / "a", ["00001.png", "x/1.png"])
    with pytest.raises(CorruptFile, match="same number"):
        layouts.find([tmp_path / "a", published / "celebahq"])
    fill(tmp_path / "b", ["00001.png", "me.png"])
    with pytest.raises(CorruptFile, match="named by its number"):
        layouts.find([tmp_path / "b", published / "celebahq"])


def test_any_other_folder_is_split_by_sorted_name(tmp_path):
    fill(tmp_path / "mine", [f"{letter}.png" for letter in "kjihgfedcbalmnopqrstu"])
    splits = get("faces").import_from(tmp_path / "mine", root=tmp_path / "data")
    assert splits.variant == "imported"
    assert splits.manifest["test_pictures"] == ["j", "t"]
    with pytest.raises(DataMissing, match="too few"):
        layouts.find([fill(tmp_path / "few", ["a.png"])])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataMissing, match="no pictures"):
        layouts.find([tmp_path / "none"])


def test_known_substitutes_have_their_own_variant_and_stated_splits(reference):
    faces_found = layouts.find([reference("faces")])
    assert (faces_found.variant, len(faces_found.train), len(faces_found.test)) == ("faces", 54, 10)
    names = sorted(path.relative_to(reference("faces")).as_posix() for path in (*faces_found.train, *faces_found.test))
    assert [path.relative_to(reference("faces")).as_posix() for path in faces_found.test] == names[5::6]
    photos = layouts.find([reference("photos")])
    assert (photos.variant, len(photos.train), len(photos.test)) == ("photos", 190, 40)
    both = layouts.find([reference("faces"), reference("photos")])
    assert both.variant == "faces+photos"
    assert both.test == (*photos.test, *faces_found.test)
    assert both == layouts.find([reference("photos"), reference("faces")])
    with pytest.raises(DataMissing, match="twice"):
        layouts.find([reference("photos"), reference("photos")])


def test_validation_is_kept_out_of_training_unless_asked_otherwise(tmp_path):
    fill(tmp_path / "mine", [f"{number:02d}.png" for number in range(45)])
    dataset = get("faces")
    dataset.import_from(tmp_path / "mine", root=tmp_path / "data")
    apart = dataset.load(faces.Data(), root=tmp_path / "data")
    assert not set(apart.train.rows) & set(apart.valid.rows)
    assert len(apart.train) + len(apart.valid) == 41
    within = dataset.load(faces.Data(held_out=False), root=tmp_path / "data")
    assert len(within.train) == 41
    assert set(within.valid.rows) < set(within.train.rows)


def test_other_sides_are_made_from_the_stored_pictures(tmp_path):
    fill(tmp_path / "mine", [f"{number:02d}.png" for number in range(20)])
    dataset = get("faces")
    dataset.import_from(tmp_path / "mine", root=tmp_path / "data")
    full, small = (dataset.load(data, root=tmp_path / "data") for data in (faces.Data(), faces.Data(low=8, high=32)))
    expected = pair_of(Image.fromarray(full.test.example(1).high), 8, 32)
    for found, made in zip(small.test.example(1), expected, strict=True):
        np.testing.assert_array_equal(found, made)


# ------------------------------------------------------------------------------------------------ storage and stand-ins


def test_an_interrupted_import_goes_on_where_it_was(tmp_path, monkeypatch):
    fill(tmp_path / "mine", [f"{number:02d}.png" for number in range(20)])
    monkeypatch.setattr(faces, "IMPORT_SHARD", 5)
    read, calls = faces.read_pair, []

    def counted(path, low, high):
        calls.append(path.name)
        if path.name == "12.png" and calls.count("12.png") == 1:
            raise KeyboardInterrupt
        return read(path, low, high)

    monkeypatch.setattr(faces, "read_pair", counted)
    monkeypatch.setattr("longspan.datasets.generation.shards.available_cpus", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        get("faces").import_from(tmp_path / "mine", root=tmp_path / "data")
    splits = get("faces").import_from(tmp_path / "mine", root=tmp_path / "data")
    assert calls.count("00.png") == 1
    assert splits.counts == {"train": 17, "valid": 1, "test": 2}
    assert [path.name for path in (tmp_path / "data" / "faces").iterdir()] == ["whole"]


def test_changed_bytes_are_found(tmp_path):
    fill(tmp_path / "mine", [f"{number:02d}.png" for number in range(20)])
    dataset = get("faces")
    dataset.import_from(tmp_path / "mine", root=tmp_path / "data")
    assert dataset.verify(root=tmp_path / "data") == []
    path = tmp_path / "data" / "faces" / "whole" / "test.low.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert "test.low.npy has changed" in dataset.verify(root=tmp_path / "data")[0]
    with pytest.raises(DataDamaged):
        dataset.load(root=tmp_path / "data")


def test_absent_data_are_an_error_with_the_command_and_stand_ins_are_marked(tmp_path):
    dataset = get("faces")
    with pytest.raises(DataMissing, match="longspan data import faces"):
        dataset.load(root=tmp_path)
    with pytest.raises(DataMissing, match="longspan data import faces"):
        dataset.prepare(root=tmp_path)
    made = dataset.load(faces.SMOKE, root=tmp_path)
    assert made.variant == "standin"
    assert made.counts == {"train": 90, "valid": 10, "test": 8}
    assert made.test.example(0).high.shape == (32, 32, 3)
    assert dataset.verify(faces.SMOKE, root=tmp_path) == []
    with pytest.raises(DataMissing):
        dataset.load(faces.SMOKE, root=tmp_path, real=True)


def test_stand_ins_are_pictures_that_differ(tmp_path):
    made = get("faces").load(faces.SMOKE, root=tmp_path)
    assert len({made.train.example(i).high.tobytes() for i in range(len(made.train))}) == len(made.train)
    assert min(made.train.example(i).high.std() for i in range(20)) > 5


def test_samples_are_drawn_in_colour(tmp_path):
    path = get("faces").draw_samples(faces.SMOKE, 3, tmp_path / "some.png")
    image = Image.open(path)
    assert image.mode == "RGB"
    assert len(np.unique(np.array(image).reshape(-1, 3), axis=0)) > 100


@pytest.mark.parametrize("wrong", [{"low": 128}, {"low": 0}, {"test": 0}, {"standin": True}])
def test_settings_that_make_no_data_are_refused(wrong):
    with pytest.raises(UsageError):
        faces.Data(**wrong)


def test_the_command_line_takes_both_folders_and_refuses_two_where_one_is_meant(published, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    paths = [str(published / "ffhq"), str(published / "celebahq")]
    done = CliRunner().invoke(app, ["data", "import", "faces", *paths])
    assert done.exit_code == 0, done.output
    assert "faces (imported) is imported: 27 train, 3 valid, 100 test" in done.output
    done = CliRunner().invoke(app, ["data", "import", "cifar10", *paths])
    assert done.exit_code == 2
    assert "one path" in done.output
