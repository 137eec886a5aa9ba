"""Data are verified when read: hashed once, again after any change, and range-checked."""

import hashlib
import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from longspan.core.errors import CorruptFile, DataDamaged
from longspan.datasets import get, imdb
from longspan.datasets.generation import verified
from longspan.datasets.generation.verified import MEMORY


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled immediately, so that tests need not wait."""
    monkeypatch.setattr(verified, "SETTLED_SECONDS", -60.0)


@pytest.fixture
def hashed(monkeypatch):
    """The names of the files that are hashed."""
    names = []

    def watched(path, hash_file=verified.hash_file):
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(verified, "hash_file", watched)
    return names


@pytest.fixture
def data(small_listops, tmp_path):
    get("listops").prepare(small_listops, root=tmp_path)
    return small_listops


def folder_of(data, tmp_path):
    return get("listops").folder(data, tmp_path)


def change_labels(path, count):
    """Overwrite the labels in place; size and inode stay."""
    labels = np.load(path, mmap_mode="r+")
    labels[:count] = (labels[:count] + 1) % 10
    labels.flush()
    del labels


@pytest.mark.parametrize("hide", [False, True], ids=["as it is", "with its old time"])
def test_399_changed_labels_are_noticed(settled, data, tmp_path, hide):
    data = replace(data, train=400)
    dataset = get("listops")
    before = dataset.load(data, root=tmp_path)
    path = folder_of(data, tmp_path) / "train.labels.npy"
    assert (path.parent / MEMORY).exists(), "the files were hashed and remembered"
    times = path.stat()
    change_labels(path, 399)
    if hide:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert path.stat().st_size == times.st_size
    with pytest.raises(DataDamaged, match=r"train\.labels\.npy has changed .*longspan data prepare listops") as caught:
        dataset.load(data, root=tmp_path)
    assert caught.value.exit_code == 3
    assert dataset.prepare(data, root=tmp_path).sha256 == before.sha256
    assert dataset.load(data, root=tmp_path).sha256 == before.sha256


def test_labels_of_a_corpus_are_noticed_too(settled, tmp_path):
    data = imdb.Data(length=64, train=100, valid=20, test=20, standin=True)
    get("imdb").load(data, root=tmp_path)
    (path,) = tmp_path.rglob("test.labels.npy")
    labels = np.load(path)
    np.save(path, 1 - labels)
    with pytest.raises(DataDamaged, match=r"test\.labels\.npy has changed"):
        get("imdb").load(data, root=tmp_path)


def test_files_are_hashed_once_as_they_are_and_on_demand(settled, hashed, data, tmp_path):
    dataset = get("listops")
    dataset.load(data, root=tmp_path)
    del hashed[:]
    dataset.load(data, root=tmp_path)
    assert hashed == []
    path = folder_of(data, tmp_path) / "valid.labels.npy"
    os.utime(path)
    dataset.load(data, root=tmp_path)
    assert hashed == ["valid.labels.npy"]
    del hashed[:]
    assert dataset.verify(data, root=tmp_path) == []
    assert len(hashed) == 9
    del hashed[:]
    assert dataset.status(data, root=tmp_path).ready
    assert hashed == [], "status stays cheap"


def test_a_file_changed_a_moment_ago_is_hashed_again(hashed, data, tmp_path):
    """Its timestamp may be too coarse to show the next change."""
    for _ in range(2):
        del hashed[:]
        get("listops").load(data, root=tmp_path)
        assert len(hashed) == 9
    assert not (folder_of(data, tmp_path) / MEMORY).exists()


@pytest.mark.parametrize("content", ["", "no JSON", "[]", '{"manifest": 1}', '{"files": []}', "[" * 100_000])
def test_a_damaged_memory_only_means_hashing_again(settled, hashed, data, tmp_path, content):
    (folder_of(data, tmp_path) / MEMORY).write_text(content)
    del hashed[:]
    get("listops").load(data, root=tmp_path)
    assert len(hashed) == 9


def test_a_folder_that_cannot_be_written_is_hashed_every_time_without_an_error(
    settled, hashed, data, tmp_path, monkeypatch
):
    (folder_of(data, tmp_path) / MEMORY).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    for _ in range(2):
        del hashed[:]
        get("listops").load(data, root=tmp_path)
        assert len(hashed) == 9


def test_a_copy_of_a_folder_is_hashed_anew(settled, hashed, data, tmp_path):
    get("listops").load(data, root=tmp_path)
    shutil.copytree(tmp_path / "listops", tmp_path / "other" / "listops")
    del hashed[:]
    get("listops").load(data, root=tmp_path / "other")
    assert len(hashed) == 9


# -------------------------------------------------------------------------------------------------------------- ranges


def forge(folder, name, change):
    """Replace an array, with a matching manifest."""
    path = folder / name
    array = np.load(path)
    array = change(array)
    np.save(path, array)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["arrays"][name] |= {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def with_value(place, value):
    def change(array):
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("train.starts.npy", with_value(1, -5), r"train\.starts should rise from 0"),
        ("train.starts.npy", with_value(0, 3), r"train\.starts should rise from 0"),
        ("train.starts.npy", with_value(-1, 10**9), r"train\.starts should rise from 0"),
        ("train.starts.npy", with_value(2, 10**6), r"train\.starts should rise from 0"),
        ("train.starts.npy", lambda a: a.astype(np.float64), r"train\.starts should be int64 offsets"),
        ("train.starts.npy", lambda a: a[:-3], r"train\.starts should have the edges of"),
        ("test.labels.npy", with_value(0, 10), r"test\.labels should be 0 \.\. 9, found 10"),
        ("test.labels.npy", lambda a: a[:-1], r"test should have \d+ examples, found \d+"),
        ("test.labels.npy", lambda a: a.astype(np.float32), r"test\.labels should be integers"),
        ("valid.tokens.npy", with_value(7, 200), r"valid\.tokens should be 0 \.\. 16, found 200"),
    ],
)
def test_values_out_of_range_are_refused_though_the_hash_is_right(data, tmp_path, name, change, words):
    forge(folder_of(data, tmp_path), name, change)
    with pytest.raises(DataDamaged, match=words):
        get("listops").load(data, root=tmp_path)
    assert get("listops").verify(data, root=tmp_path)


def test_a_right_hash_of_yesterday_does_not_hide_a_range_of_today(settled, data, tmp_path):
    get("listops").load(data, root=tmp_path)
    forge(folder_of(data, tmp_path), "train.starts.npy", with_value(1, -5))
    for _ in range(2):
        with pytest.raises(DataDamaged, match="should rise from 0"):
            get("listops").load(data, root=tmp_path)


# ------------------------------------------------------------------------------------------------------------ manifests


def test_the_manifest_of_other_settings_is_refused(data, tmp_path):
    other = replace(data, seed=7)
    get("listops").prepare(other, root=tmp_path)
    shutil.rmtree(folder_of(data, tmp_path))
    shutil.copytree(folder_of(other, tmp_path), folder_of(data, tmp_path))
    with pytest.raises(DataDamaged, match=r"is of other data \(settings "):
        get("listops").load(data, root=tmp_path)
    status = get("listops").status(data, root=tmp_path)
    assert not status.ready
    assert "is of other data" in status.problem


@pytest.mark.parametrize(
    "change",
    [
        {"variant": "an invented one"},
        {"variant": None},
        {"dataset": "imdb"},
        {"schema": True},
        {"schema": 2},
        {"counts": {"train": "many"}},
        {"counts": {"train": 1}},
        {"counts": []},
        {"arrays": {}},
        {"arrays": {"../train.tokens.npy": {}}},
        {"arrays": {"train.tokens.npy": {"sha256": "x", "bytes": 3, "dtype": "object", "shape": [1]}}},
        {"arrays": {"train.tokens.npy": {"sha256": "x", "bytes": 3, "dtype": "uint8", "shape": [-1]}}},
        {"arrays": {"train.tokens.npy": {"sha256": "x", "bytes": 3, "dtype": "uint8", "shape": [10**15]}}},
    ],
    ids=str,
)
def test_a_manifest_that_is_not_sound_is_one_sentence(data, tmp_path, change):
    path = folder_of(data, tmp_path) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptFile, match="longspan data prepare listops"):
        get("listops").load(data, root=tmp_path)
    assert get("listops").prepare(data, root=tmp_path).counts["train"] == data.train
