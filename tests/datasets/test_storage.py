"""What every generated dataset promises of its files: the same for any number of workers, whole or absent."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longspan.core.errors import CorruptFile, DataMissing, StorageError, UnknownName, UsageError
from longspan.datasets import get, listops, names
from longspan.datasets.base import SPLITS, data_root
from longspan.datasets.generation.shards import read_shard


def python(code: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], text=True, **options)


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_dir())


def test_the_shelf_holds_only_corpora():
    assert {"listops", "pathfinder"} <= set(names())
    assert not {"base", "generation", "drawing"} & set(names())
    with pytest.raises(UnknownName, match="Did you mean 'listops'"):
        get("listop")


def test_datasets_are_read_without_torch():
    code = "import sys; from longspan.datasets import listops, pathfinder; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_root_is_the_argument_then_the_environment_then_out_data(monkeypatch, tmp_path):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("LONGSPAN_DATA")
    assert data_root() == Path("out/data")


@pytest.mark.parametrize("name", ["listops", "pathfinder"])
def test_any_number_of_workers_makes_the_same_data(name, request, tmp_path):
    data = request.getfixturevalue(f"small_{name}")
    one = get(name).prepare(data, root=tmp_path / "one", workers=1)
    many = get(name).prepare(data, root=tmp_path / "many", workers=5)
    assert one.sha256 == many.sha256
    assert one.manifest["arrays"] == many.manifest["arrays"]
    for split in SPLITS:
        assert len(getattr(one, split)) == getattr(data, split) == one.manifest["counts"][split]
        np.testing.assert_array_equal(getattr(one, split).tokens, getattr(many, split).tokens)
        assert sum(one.manifest["label_counts"][split].values()) == getattr(data, split)
    other = get(name).prepare(replace(data, seed=1), root=tmp_path / "one")
    assert other.sha256 != one.sha256


@pytest.mark.parametrize(
    "name, digest",
    [
        ("listops", "e9c65134f2996a78"),
        ("pathfinder", "bb806f4d1ec173b6"),
    ],
)
def test_the_same_settings_give_the_same_data_on_every_machine_and_in_every_version(name, digest, request):
    """If this fails, increment the dataset's `generator`: older cards refer to other data."""
    shard = get(name).make_shard(request.getfixturevalue(f"small_{name}"), 0)
    content = shard.tokens.tobytes() + shard.lengths.tobytes() + shard.labels.tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_no_example_appears_twice_in_any_split(tmp_path):
    """Short expressions repeat all the time, so the pool must drop and refill."""
    data = listops.Data(train=1_500, valid=200, test=200, longer_than=3, shorter_than=8)
    splits = get("listops").load(data, root=tmp_path)
    texts = [
        split.example(i).tobytes() for split in (splits.train, splits.valid, splits.test) for i in range(len(split))
    ]
    assert len(set(texts)) == len(texts) == 1_900
    labels = np.concatenate([splits.train.labels, splits.valid.labels, splits.test.labels])
    assert [listops.evaluate(np.frombuffer(text, np.uint8)) for text in texts] == labels.tolist()


def test_asking_for_more_examples_than_there_are_ends_with_a_sentence(tmp_path):
    data = listops.Data(train=500, valid=1, test=1, longer_than=3, shorter_than=5, max_args=2)  # 4 * 10 * 10 of them
    with pytest.raises(UsageError, match="502 different examples, but 40 shards gave only 400"):
        get("listops").prepare(data, root=tmp_path)
    assert folders(tmp_path) == ["listops"]


def test_splits_are_read_only_memory_maps(small_listops, tmp_path):
    split = get("listops").load(small_listops, root=tmp_path).train
    assert isinstance(split.tokens, np.memmap)
    assert (split.tokens.dtype, split.starts.dtype, split.labels.dtype) == (np.uint8, np.int64, np.uint8)
    assert split.lengths.sum() == len(split.tokens)
    with pytest.raises(ValueError, match="read-only"):
        split.tokens[0] = 1


def test_a_killed_preparation_goes_on_where_it_was(small_listops, tmp_path):
    data = replace(small_listops, train=9_000)
    whole = get("listops").prepare(data, root=tmp_path / "whole")
    process = python(f"""
        import time
        from longspan.datasets import listops
        make = listops.ListOps.make_shard
        def slowly(self, data, index):
            time.sleep(60 if index >= 3 else 0)
            return make(self, data, index)
        listops.ListOps.make_shard = slowly
        listops.ListOps().prepare(listops.{data!r}, root={str(tmp_path / "killed")!r}, workers=1)
    """)
    try:
        deadline = time.monotonic() + 60
        while (status := get("listops").status(data, root=tmp_path / "killed")).shards < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not status.ready
    work = status.folder.with_name(f"{status.folder.name}.work")
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("[0-9]*.npz")}
    made = []

    class Watched(listops.ListOps):
        def make_shard(self, data, index):
            made.append(index)
            return super().make_shard(data, index)

    Watched.name = "listops"  # type: ignore[assignment]
    resumed = Watched().prepare(data, root=tmp_path / "killed")
    assert sorted(made) == list(range(3, 10))
    assert sorted(kept) == ["000000.npz", "000001.npz", "000002.npz"]
    assert resumed.sha256 == whole.sha256
    assert folders(tmp_path / "killed") == sorted(["listops", status.folder.name])


@pytest.mark.parametrize("way", ["load", "prepare"])
def test_shards_of_a_finished_dataset_are_removed_when_it_is_opened(small_listops, tmp_path, way):
    get("listops").prepare(small_listops, root=tmp_path)
    target = get("listops").status(small_listops, root=tmp_path).folder
    work = target.with_name(f"{target.name}.work")
    work.mkdir()  # as after a kill between the two
    (work / "000000.npz").write_bytes(b"a shard")
    getattr(get("listops"), way)(small_listops, root=tmp_path)
    assert not work.exists()


@pytest.mark.parametrize("harm", ["truncated", "emptied", "altered", "replaced"])
def test_a_broken_shard_is_made_again(small_listops, tmp_path, monkeypatch, harm):
    dataset = get("listops")
    whole = dataset.prepare(small_listops, root=tmp_path / "whole")
    target = dataset.folder(small_listops, tmp_path / "broken")
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "_publish", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dataset.prepare(small_listops, root=tmp_path / "broken")
    shard = target.with_name(f"{target.name}.work") / "000001.npz"
    content = bytearray(shard.read_bytes())
    if harm == "altered":
        content[len(content) // 3] ^= 1
    shard.write_bytes(
        {"truncated": content[: len(content) // 2], "emptied": b"", "replaced": b"text"}.get(harm, content)
    )
    assert read_shard(shard) is None
    assert dataset.prepare(small_listops, root=tmp_path / "broken").sha256 == whole.sha256


def test_two_processes_preparing_the_same_setting_both_get_it_whole(small_listops, tmp_path):
    code = f"""
        from longspan.datasets import listops
        splits = listops.ListOps().prepare(listops.{replace(small_listops, train=20_000)!r}, root={str(tmp_path)!r})
        assert listops.ListOps().verify(listops.{replace(small_listops, train=20_000)!r}, root={str(tmp_path)!r}) == []
        print(splits.sha256)
    """
    processes = [python(code, stdout=subprocess.PIPE) for _ in range(3)]
    answers = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(answers) == 1
    assert len(folders(tmp_path)) == 2


def test_verify_finds_a_changed_byte_and_prepare_mends_it(small_listops, tmp_path):
    dataset = get("listops")
    before = dataset.prepare(small_listops, root=tmp_path)
    assert dataset.verify(small_listops, root=tmp_path) == []
    path = dataset.status(small_listops, root=tmp_path).folder / "valid.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    (problem,) = dataset.verify(small_listops, root=tmp_path)
    assert "valid.tokens.npy has changed" in problem
    assert dataset.prepare(small_listops, root=tmp_path).sha256 == before.sha256
    assert dataset.verify(small_listops, root=tmp_path) == []


@pytest.mark.parametrize("name", ["train.starts.npy", "test.labels.npy", "manifest.json"])
def test_a_missing_or_shortened_file_is_an_error_with_advice(small_listops, tmp_path, name):
    dataset = get("listops")
    dataset.prepare(small_listops, root=tmp_path)
    path = dataset.folder(small_listops, tmp_path) / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CorruptFile, match="prepare"):
        dataset.load(small_listops, root=tmp_path)
    (problem,) = dataset.verify(small_listops, root=tmp_path)
    assert name in problem
    if name != "manifest.json":
        path.unlink()
        with pytest.raises(CorruptFile, match="not there"):
            dataset.load(small_listops, root=tmp_path)


@pytest.mark.parametrize("variant", ["text", "standin", "official+imported"])
def test_a_variant_that_the_dataset_does_not_have_is_refused(small_listops, tmp_path, variant):
    dataset = get("listops")
    dataset.prepare(small_listops, root=tmp_path)
    path = dataset.folder(small_listops, tmp_path) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"variant": variant}))
    with pytest.raises(CorruptFile, match="does not have; remove"):
        dataset.load(small_listops, root=tmp_path)
    (problem,) = dataset.verify(small_listops, root=tmp_path)
    assert repr(variant) in problem


def test_what_is_not_prepared_is_said_so(small_listops, tmp_path):
    status = get("listops").status(small_listops, root=tmp_path)
    assert (status.ready, status.variant, status.shards) == (False, None, 0)
    assert "not prepared" in get("listops").verify(small_listops, root=tmp_path)[0]
    with pytest.raises(DataMissing, match="longspan data import listops PATH"):
        get("listops").load(small_listops, root=tmp_path, variant="imported")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_storage_error(small_listops, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="choose a writable folder"):
        get("listops").prepare(small_listops, root=tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="file size limits are a Unix matter")
@pytest.mark.parametrize("limit, where", [(20_000, "in a shard"), (150_000, "in the final arrays")])
def test_a_full_disk_is_a_storage_error_and_leaves_nothing_half_written(small_listops, tmp_path, limit, where):
    process = python(
        f"""
        import resource
        from longspan.core.errors import StorageError
        from longspan.datasets import listops
        listops.generate(listops.{small_listops!r}, 1, 0)  # the compiler writes its cache before the disk is "full"
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        try:
            listops.ListOps().prepare(listops.{small_listops!r}, root={str(tmp_path)!r})
        except StorageError as error:
            print(error)
        """,
        stdout=subprocess.PIPE,
    )
    assert "free some space" in process.communicate(timeout=60)[0]
    status = get("listops").status(small_listops, root=tmp_path)
    assert not status.ready
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]
    assert all(read_shard(path) is not None for path in left)
    assert bool(left) == (where == "in the final arrays")
    assert get("listops").prepare(small_listops, root=tmp_path).counts["train"] == small_listops.train


def test_settings_of_another_dataset_are_refused(small_pathfinder, tmp_path):
    with pytest.raises(UsageError, match=r"takes settings of type listops\.Data"):
        get("listops").load(small_pathfinder, root=tmp_path)
    with pytest.raises(UsageError, match="at least 1 worker"):
        get("listops").prepare(root=tmp_path, workers=0)
