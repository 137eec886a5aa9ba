"""CIFAR-10: TensorFlow's gray values exactly, the same order from every layout, and no code run from a pickle."""

import csv
import gzip
import hashlib
import io
import json
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import cifar10, get
from longspan.datasets.splits import published
from tests.core.test_archive import tarred
from tests.loopback import Page, serving

SIZE = 40  # pictures a batch, where the published ones have 10,000
COLOURS = np.random.default_rng(0).integers(256, size=(6 * SIZE, 32, 32, 3), dtype=np.uint8)
LABELS = np.random.default_rng(1).permutation(np.tile(np.arange(10, dtype=np.uint8), 6 * SIZE // 10))
BATCHES = {name: slice(i * SIZE, (i + 1) * SIZE) for i, name in enumerate(cifar10.BATCHES)}


def planes(part: slice) -> np.ndarray:
    """Red, green and blue planes, each row by row."""
    return COLOURS[part].transpose(0, 3, 1, 2).reshape(SIZE, 3_072)


def binary() -> dict[str, bytes]:
    return {
        f"cifar-10-batches-bin/{name}.bin": np.concatenate([LABELS[part, None], planes(part)], axis=1).tobytes()
        for name, part in BATCHES.items()
    } | {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}


def pickled(protocol: int = 2) -> dict[str, bytes]:
    return {
        f"cifar-10-batches-py/{name}": pickle.dumps({"data": planes(part), "labels": LABELS[part].tolist()}, protocol)
        for name, part in BATCHES.items()
    }


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def rows_of_png() -> dict[str, bytes]:
    batches = {f"package/{name}.png": png(COLOURS[part].reshape(SIZE, 1_024, 3)) for name, part in BATCHES.items()}
    train, test = json.dumps(LABELS[: 5 * SIZE].tolist()), json.dumps(LABELS[5 * SIZE :].tolist())
    return batches | {"package/train_lables.json": train.encode(), "package/test_lables.json": test.encode()}


def unpack(files: dict[str, bytes], place):
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def packed(files: dict[str, bytes], place, name: str):
    (place / name).write_bytes(gzip.compress(tarred(files), 1))
    return place / name


def by_table() -> dict[str, bytes]:
    """As in the Kaggle competition, plus the test labels that it withholds."""
    files = {}
    for split, first, last in (("train", 0, 5 * SIZE), ("test", 5 * SIZE, 6 * SIZE)):
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(["id", "label"])
        writer.writerows((i - first + 1, cifar10.NAMES[LABELS[i]]) for i in range(first, last))
        files[f"{split}Labels.csv"] = table.getvalue().encode()
        files |= {f"{split}/{i - first + 1}.png": png(COLOURS[i]) for i in range(first, last)}
    return files


def samples() -> dict[str, bytes]:
    files = {}
    for split, part in (("train", slice(0, 5 * SIZE)), ("test", slice(5 * SIZE, 6 * SIZE))):
        content = io.BytesIO()
        np.savez(content, x=cifar10.to_gray(COLOURS[part]), y=LABELS[part], index=np.arange(len(LABELS[part])))
        files[f"gray_{split}_some.npz"] = content.getvalue()
    return files


LAYOUTS = {
    "binary archive": lambda place: packed(binary(), place, "cifar-10-binary.tar.gz"),
    "folder of the binary archive": lambda place: packed(binary(), place, "cifar-10-binary.tar.gz").parent,
    "binary folder": lambda place: unpack(binary(), place),
    "batches alone": lambda place: unpack(binary(), place) / "cifar-10-batches-bin",
    "python archive": lambda place: packed(pickled(), place, "cifar-10-python.tar.gz"),
    "python folder": lambda place: unpack(pickled(), place),
    "newer pickles": lambda place: unpack(pickled(4), place),
    "rows of png": lambda place: unpack(rows_of_png(), place),
    "package with rows of png": lambda place: packed(rows_of_png(), place, "any.tgz"),
    "tables": lambda place: unpack(by_table(), place),
    "gray samples": lambda place: unpack(samples(), place),
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """An official order of 5 x 40 pictures, every tenth of which is held out."""
    monkeypatch.setattr(
        cifar10, "_place", lambda name: ("test", 0) if name == "test_batch" else ("train", _first(name))
    )
    monkeypatch.setattr(cifar10, "published", lambda name: {"valid": np.arange(0, 5 * SIZE, 10)})


def _first(name: str) -> int:
    return (int(name[-1]) - 1) * SIZE


def everything(splits) -> tuple[Counter, Counter]:
    """Pictures and labels of training and validation together, and of the test split."""
    learn = [
        (split.example(i).tobytes(), int(split.labels[i]))
        for split in (splits.train, splits.valid)
        for i in range(len(split))
    ]
    return Counter(learn), Counter((splits.test.example(i).tobytes(), int(splits.test.labels[i])) for i in range(SIZE))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pictures_in_the_same_order(layout, tmp_path):
    (tmp_path / "files").mkdir()
    splits = get("cifar10").import_from(LAYOUTS[layout](tmp_path / "files"), root=tmp_path / "data")
    gray = cifar10.to_gray(COLOURS).reshape(-1, 1_024)
    assert splits.variant == "imported"
    assert not splits.manifest["complete"]
    if layout == "tables":  # a different order, so the held-out pictures are drawn by the rule
        assert "train.index.npy" not in splits.manifest["arrays"]
        learn, _ = everything(splits)
        assert learn == Counter((gray[i].tobytes(), int(LABELS[i])) for i in range(5 * SIZE))
        with pytest.raises(UsageError, match="official order"):
            get("cifar10").load(cifar10.Data(split="seed42"), root=tmp_path / "data")
    else:
        held = np.arange(0, 5 * SIZE, 10)
        kept = np.setdiff1d(np.arange(5 * SIZE), held)
        for split, rows in ((splits.train, kept), (splits.valid, held)):
            np.testing.assert_array_equal(np.stack([split.example(i) for i in range(len(split))]), gray[rows])
            np.testing.assert_array_equal(split.labels, LABELS[rows])
    np.testing.assert_array_equal(np.stack([splits.test.example(i) for i in range(SIZE)]), gray[5 * SIZE :])
    np.testing.assert_array_equal(splits.test.labels, LABELS[5 * SIZE :])
    assert get("cifar10").verify(root=tmp_path / "data") == []


def test_folders_by_class_hold_the_same_pictures_in_an_order_of_their_own(tmp_path):
    files = {}
    for i, label in enumerate(LABELS):
        split = "train" if i < 5 * SIZE else "test"
        files[f"{split}/{cifar10.NAMES[label]}/{i}.png"] = png(COLOURS[i])
    splits = get("cifar10").import_from(unpack(files, tmp_path / "files"), root=tmp_path / "data")
    gray = cifar10.to_gray(COLOURS).reshape(-1, 1_024)
    learn, test = everything(splits)
    assert learn == Counter((gray[i].tobytes(), int(LABELS[i])) for i in range(5 * SIZE))
    assert test == Counter((gray[i].tobytes(), int(LABELS[i])) for i in range(5 * SIZE, 6 * SIZE))
    assert np.bincount(splits.valid.labels, minlength=10).max() <= 3


def test_gray_is_the_law_in_single_precision_for_a_grid_of_colours_and_its_neighbours():
    """One colour at a time in NumPy scalars, each operation written out and rounded to float32."""
    levels = sorted({0, 1, 254, 255, *(2**k for k in range(8)), *(2**k - 1 for k in range(1, 8)), 77, 150, 201})
    colours = np.array([(r, g, b) for r in levels for g in levels[::2] for b in levels[::3]], np.uint8)
    f = np.float32
    scale, wanted = f(1.0) / f(255.0), []
    for r, g, b in colours.tolist():
        light = f(f(f(r) * scale * f(0.2989)) + f(f(g) * scale * f(0.5870)))
        light = f(light + f(f(b) * scale * f(0.1140)))
        wanted.append(min(255, int(np.floor(f(light * f(255.5))))))
    assert cifar10.to_gray(colours).tolist() == wanted


def test_gray_agrees_with_the_reference_samples_in_every_pixel(reference):
    colours, gray = (np.load(reference(f"cifar10/{name}.npz")) for name in ("rgb_test_first128", "gray_test_1k"))
    both = np.intersect1d(colours["index"], gray["index"])
    assert len(both) > 100
    ours = cifar10.to_gray(colours["x"][np.isin(colours["index"], both)])
    np.testing.assert_array_equal(ours, gray["x"][np.isin(gray["index"], both)])


def test_the_reference_samples_are_split_by_the_published_rows(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "published", published)
    folder = reference("cifar10/gray_train_3k.npz").parent
    index = np.load(folder / "gray_train_3k.npz")["index"]
    for split in ("longspan", "seed42"):
        splits = get("cifar10").import_from(folder, cifar10.Data(split=split), root=tmp_path)
        held = np.isin(index, published(f"cifar10-{split}")["valid"]).sum()
        assert splits.counts == {"train": 3_000 - held, "valid": held, "test": 1_000}
    few = get("cifar10").load(cifar10.Data(train=500, valid=50, test=100), root=tmp_path)
    assert np.bincount(few.test.labels).tolist() == [10] * 10
    assert np.ptp(np.bincount(few.train.labels)) <= 3


@pytest.fixture
def small_official(monkeypatch):
    """A small stand-in for the published archive; returns its bytes."""
    content = gzip.compress(tarred(binary()), 1)
    digests = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(cifar10, "BINARY", replace(cifar10.BINARY, size=len(content), **digests))
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")
    return content


def test_the_official_archive_is_downloaded_verified_and_marked_official(small_official, tmp_path, monkeypatch):
    even = np.tile(np.arange(10, dtype=np.uint8), 6 * SIZE // 10)
    monkeypatch.setattr(cifar10, "_WHOLE", {"train": 5 * SIZE, "test": SIZE})
    records = {
        f"cifar-10-batches-bin/{name}.bin": np.concatenate([even[part, None], planes(part)], axis=1).tobytes()
        for name, part in BATCHES.items()
    }
    content = gzip.compress(tarred(records), 1)
    digests = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(cifar10, "BINARY", replace(cifar10.BINARY, size=len(content), **digests))
    with serving({"cifar-10-binary.tar.gz": Page(content)}) as server:
        monkeypatch.setenv(remote.MIRROR, server.url)
        splits = get("cifar10").prepare(root=tmp_path, progress=False)
    assert splits.variant == "official"
    assert splits.counts == {"train": 180, "valid": 20, "test": 40}


def test_a_published_digest_on_other_pictures_is_a_fault_that_is_told(small_official, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(small_official)
    with pytest.raises(CorruptFile, match="not the published pictures"):
        get("cifar10").import_from(tmp_path / "x.tar.gz", root=tmp_path / "data")


class Hostile:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a pickle was run')",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": Hostile(), "labels": [0]}),
        pickle.dumps({"data": np.zeros((1, 3_072), np.uint8), "labels": [0], "more": Hostile()}),
        pickle.dumps({"data": np.zeros((1, 3_072), np.float32), "labels": [0]}),
        pickle.dumps({"data": np.zeros((2, 3_072), np.uint8), "labels": [0]}),
        pickle.dumps({"data": np.zeros((1, 3_072), np.uint8), "labels": ["cat"]}),
        pickle.dumps({"data": np.zeros((1, 3_072), np.uint8), "labels": [[0], [1, 2]]}),
        pickle.dumps([1, 2]),
        b"",
        b"garbage",
    ],
)
def test_a_pickle_with_anything_but_arrays_is_refused_and_never_run(content, tmp_path):
    unpack(pickled() | {"cifar-10-batches-py/data_batch_3": content}, tmp_path)
    with pytest.raises(CorruptFile, match="data_batch_3"):
        get("cifar10").import_from(tmp_path, root=tmp_path / "data")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("cifar-10-batches-bin/data_batch_2.bin", b"\0" * 3_072, "whole number of records"),
        ("cifar-10-batches-bin/data_batch_2.bin", b"", "whole number of records"),
        ("cifar-10-batches-bin/test_batch.bin", b"\x0a" * 3_073, "labels should be 0 .. 9, found 10"),
    ],
)
def test_a_binary_batch_that_cannot_be_right_is_refused(name, content, words, tmp_path):
    with pytest.raises(CorruptFile, match=words):
        get("cifar10").import_from(unpack(binary() | {name: content}, tmp_path), root=tmp_path / "data")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("package/data_batch_2.png", b"no image", "not a readable PNG"),
        ("package/data_batch_2.png", png(np.zeros((4, 1_024), np.uint8)), "in colour"),
        ("package/data_batch_2.png", png(np.zeros((4, 1_000, 3), np.uint8)), "rows of 1024 colours"),
        ("package/train_lables.json", b"[1, 2", "not JSON"),
        ("package/train_lables.json", b"[1, 2, 10]", "labels 0 .. 9"),
        ("package/train_lables.json", b"[1, 2]", "more pictures than there are train labels"),
        ("package/train_lables.json", json.dumps([1] * 300).encode(), "300 train labels but 200 pictures"),
    ],
)
def test_rows_of_png_that_cannot_be_right_are_refused(name, content, words, tmp_path):
    with pytest.raises(CorruptFile, match=words):
        get("cifar10").import_from(unpack(rows_of_png() | {name: content}, tmp_path), root=tmp_path / "data")


def test_an_archive_with_a_batch_missing_says_what_it_has(tmp_path):
    files = {name: content for name, content in binary().items() if "data_batch_4" not in name}
    with pytest.raises(CorruptFile, match="should hold data_batch_1"):
        get("cifar10").import_from(packed(files, tmp_path, "x.tar.gz"), root=tmp_path / "data")


def test_the_competition_without_test_labels_is_told_apart(tmp_path):
    files = {name: content for name, content in by_table().items() if name != "testLabels.csv"}
    with pytest.raises(DataMissing, match="without test labels"):
        get("cifar10").import_from(unpack(files, tmp_path), root=tmp_path / "data")


@pytest.mark.parametrize("row", ["1,tiger", "../1,cat", "9999,cat", "1", "1,\udcff"])
def test_a_label_table_that_cannot_be_right_is_refused(row, tmp_path):
    unpack(by_table() | {"trainLabels.csv": f"id,label\n{row}\n".encode(errors="surrogateescape")}, tmp_path)
    with pytest.raises(CorruptFile, match=r"trainLabels\.csv|is listed but is not there"):
        get("cifar10").import_from(tmp_path, root=tmp_path / "data")


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros((2, 32, 32), np.uint8), "y": np.array([1, -250]), "index": np.arange(2)},
        {"x": np.zeros((2, 32, 32), np.uint8), "y": np.array(3), "index": np.array(3)},
        {"x": np.zeros((2, 32, 32), np.float32), "y": np.array([1, 2]), "index": np.arange(2)},
        {"x": np.zeros((2, 32, 32), np.uint8), "y": np.array([1, 2])},
        None,
    ],
)
def test_samples_that_cannot_be_right_are_refused(arrays, tmp_path):
    unpack(samples(), tmp_path)
    if arrays is None:
        (tmp_path / "gray_train_some.npz").write_bytes(samples()["gray_train_some.npz"][:-500])
    else:
        np.savez(tmp_path / "gray_train_some.npz", **arrays)
    with pytest.raises(CorruptFile, match=r"gray_train_some\.npz"):
        get("cifar10").import_from(tmp_path, root=tmp_path / "data")


def test_samples_whose_places_repeat_are_refused(tmp_path):
    unpack(samples(), tmp_path)
    x, y = cifar10.to_gray(COLOURS[:2]), LABELS[:2]
    np.savez(tmp_path / "gray_train_some.npz", x=x, y=y, index=np.array([7, 7]))
    with pytest.raises(CorruptFile, match="official order"):
        get("cifar10").import_from(tmp_path, root=tmp_path / "data")


def test_a_contact_sheet_shows_the_pictures_with_their_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    get("cifar10").import_from(unpack(samples(), tmp_path / "files"))
    sheet = get("cifar10").draw_samples(None, 6, tmp_path / "x.png")
    with Image.open(sheet) as image:
        assert image.size == (10 + 4 * 266, 10 + 2 * 284)
    shown = get("cifar10").samples(None, 6)
    gray = {picture.tobytes(): int(label) for picture, label in zip(cifar10.to_gray(COLOURS), LABELS, strict=True)}
    assert all(gray[sample.content.tobytes()] == sample.label for sample in shown)


def test_made_up_shapes_differ_by_more_than_their_noise():
    """The nearest class mean of other drawings classifies most (learnable), but not all (positions and sizes vary)."""
    train, test = (get("cifar10").make_shard(cifar10.Data(standin=True), index) for index in (0, 1))
    means = np.stack([np.stack(train.rows())[train.labels == label].mean(axis=0) for label in range(10)])
    pictures = np.stack(test.rows()).astype(float)
    nearest = ((pictures[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert 0.4 < (nearest == test.labels).mean() < 0.99
