"""What every real corpus promises: absent data are an error, stand-ins are marked, a view copies nothing."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from longspan.core.errors import CorruptFile, DataMissing, UnknownName, UsageError
from longspan.datasets import aan, cifar10, get, imdb, splits
from longspan.datasets.base import SPLITS
from longspan.datasets.corpus import evenly
from longspan.datasets.splits import published, tenth_of_each_class

SMALL = {
    "imdb": imdb.Data(length=200, train=60, valid=20, test=20, standin=True),
    "cifar10": cifar10.Data(train=60, valid=20, test=20, standin=True),
    "aan": aan.Data(length=200, train=60, valid=20, test=20, standin=True),
}


@pytest.fixture(params=SMALL)
def name(request):
    return request.param


def test_absent_data_is_an_error_that_names_source_size_and_command(name, tmp_path):
    with pytest.raises(DataMissing) as error:
        get(name).load(replace(SMALL[name], standin=False), root=tmp_path)
    for words in (get(name).meta.source, get(name).meta.size, f"longspan data prepare {name}", "data import"):
        assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_stand_ins_are_marked_and_forbidden_where_real_data_is_asked_for(name, tmp_path):
    made = get(name).load(SMALL[name], root=tmp_path)
    assert made.variant == "standin" == made.manifest["variant"]
    assert made.counts == {"train": 60, "valid": 20, "test": 20}
    assert get(name).status(SMALL[name], root=tmp_path).variant == "standin"
    with pytest.raises(DataMissing):
        get(name).load(SMALL[name], root=tmp_path, real=True)
    with pytest.raises(DataMissing):
        get(name).load(SMALL[name], root=tmp_path, variant="official")


def test_stand_ins_of_one_seed_are_the_same_and_of_another_are_not(name, tmp_path):
    one = get(name).load(SMALL[name], root=tmp_path / "one")
    again = get(name).load(SMALL[name], root=tmp_path / "again")
    other = get(name).load(replace(SMALL[name], seed=1), root=tmp_path / "one")
    assert one.sha256 == again.sha256 != other.sha256
    for split in SPLITS:
        np.testing.assert_array_equal(getattr(one, split).tokens, getattr(again, split).tokens)


@pytest.mark.parametrize(
    "name, digest",
    [("imdb", "7f971949a4274056"), ("cifar10", "c1a09dd323b778e1"), ("aan", "515d26d77c20d850")],
    ids=["imdb", "cifar10", "aan"],
)
def test_stand_ins_are_the_same_in_every_version(name, digest):
    """If this fails, increment the dataset's `generator`: older cards refer to other data."""
    shard = get(name).make_shard(SMALL[name], 0)
    content = shard.tokens.tobytes() + shard.lengths.tobytes() + shard.labels.tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_every_class_of_a_stand_in_is_about_as_frequent(name):
    labels = get(name).make_shard(SMALL[name], 0).labels
    share = np.bincount(labels, minlength=get(name).meta.classes) / len(labels)
    assert share.min() > 0.6 / len(share)


def test_samples_of_stand_ins_are_shown_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    samples = get(name).samples(SMALL[name], 5, seed=3)
    assert len(samples) == 5
    assert all(0 <= sample.label < get(name).meta.classes for sample in samples)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataMissing):
        get(name).samples(replace(SMALL[name], standin=False), 5)


@pytest.mark.parametrize(
    "name, wrong",
    [
        *((name, wrong) for name in SMALL for wrong in ({"train": 0}, {"valid": -1})),
        ("imdb", {"length": 0}),
        ("imdb", {"validation": "train"}),
        ("cifar10", {"split": "random"}),
        ("aan", {"length": 0}),
        ("aan", {"length": 10_001}),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}="):
        replace(SMALL[name], **wrong)


def test_a_path_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(DataMissing, match="nowhere"):
        get(name).import_from(tmp_path / "nowhere", root=tmp_path)


def test_a_folder_with_nothing_in_it_says_which_layouts_are_read(name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="neither"):
        get(name).import_from(tmp_path / "empty", root=tmp_path / "data")
    assert not (tmp_path / "data" / name / "whole").exists()


@pytest.mark.parametrize("split", ["imdb-longspan", "cifar10-longspan", "cifar10-seed42"])
def test_published_rows_are_a_tenth_of_all_each_named_once(split):
    size = {"imdb": 25_000, "cifar10": 50_000}[split.partition("-")[0]]
    rows = published(split)["valid"]
    assert len(rows) == size // 10
    assert np.all(np.diff(rows) > 0)
    assert rows[0] >= 0
    assert rows[-1] < size


def test_the_published_rows_of_imdb_hold_as_many_good_reviews_as_bad_ones():
    assert (published("imdb-longspan")["valid"] < 12_500).sum() == 1_250


def test_the_published_seed42_is_the_split_of_torch():
    torch = pytest.importorskip("torch")
    parts = torch.utils.data.random_split(range(50_000), [45_000, 5_000], generator=torch.Generator().manual_seed(42))
    assert sorted(parts[1].indices) == published("cifar10-seed42")["valid"].tolist()


def test_a_split_file_that_was_altered_is_refused(tmp_path, monkeypatch):
    for file in splits.FOLDER.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(splits, "FOLDER", tmp_path)
    assert len(published("imdb-longspan")["valid"]) == 2_500
    content = bytearray((tmp_path / "imdb-longspan.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "imdb-longspan.npz").write_bytes(bytes(content))
    with pytest.raises(CorruptFile, match="sha256"):
        published("imdb-longspan")
    (tmp_path / "imdb-longspan.npz").unlink()
    with pytest.raises(CorruptFile, match="not there"):
        published("imdb-longspan")
    with pytest.raises(UnknownName, match="Did you mean 'imdb-longspan'"):
        published("imdb-longspam")


def test_a_tenth_of_each_class_is_a_tenth_of_each_class():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [100, 57, 9, 40]))
    held = tenth_of_each_class(labels, "anything")
    assert np.bincount(labels[held], minlength=4).tolist() == [10, 5, 0, 4]
    assert len(set(held.tolist())) == len(held)
    assert not np.array_equal(held, tenth_of_each_class(labels, "something else"))


def test_fewer_rows_keep_the_classes_in_proportion_whatever_the_order():
    alternating, rows = np.arange(1_000) % 2, np.arange(1_000)
    for labels in (alternating, np.sort(alternating)):
        some = evenly(labels, rows, 100)
        assert labels[some].sum() == 50
        assert np.all(np.diff(some) > 0)
    for wanted in (None, 1_000, 1_001):
        np.testing.assert_array_equal(evenly(alternating, rows, wanted), rows)
