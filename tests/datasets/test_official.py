"""The official files of ListOps and Pathfinder, served from this machine in the published layout and read every way."""

import gzip
import io
import json
import lzma
import tarfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from longspan.cli import app
from longspan.core import download, remote
from longspan.core.archive import members
from longspan.core.errors import CorruptFile, DataMissing, StorageError, UsageError
from longspan.datasets import get, listops, pathfinder
from longspan.datasets.lra_release import images, places
from longspan.datasets.splits import published
from tests.datasets.test_pathfinder import official_folder
from tests.loopback import Page, serving

LISTOPS = listops.Data(6, 2, 2)
PATHFINDER = pathfinder.Data(train=32, valid=4, test=4)
ROOT = "lra_release/lra_release"
HARD = f"{ROOT}/pathfinder32/curv_contour_length_14"
BULK = {f"{ROOT}/pathfinder64/curv_baseline/imgs/0/sample_{i}.png": bytes([i % 256]) * 3_000 for i in range(400)}


@pytest.fixture(autouse=True)
def small_release(monkeypatch):
    """A release of ten expressions and forty images, without pauses between retries."""
    monkeypatch.setattr(listops, "PUBLISHED", {"train": 6, "valid": 2, "test": 2})
    monkeypatch.setattr(pathfinder, "PUBLISHED", 40)
    monkeypatch.setattr(pathfinder, "published", lambda name: pathfinder.split_indices(40, 0))
    monkeypatch.setattr(remote, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")


def left_associated(text: str) -> str:
    """An expression with round brackets as in the release."""
    stack: list[list[str]] = [[]]
    for word in text.split():
        if word.startswith("["):
            stack.append([word])
        elif word == "]":
            whole, *parts = [*stack.pop(), "]"]
            for part in parts:
                whole = f"( {whole} {part} )"
            stack[-1].append(whole)
        else:
            stack[-1].append(word)
    return stack[0][0]


def tables(ending: str = "\r\n") -> dict[str, bytes]:
    """`basic_*.tsv` as in the release: generated expressions with round brackets, CR LF."""
    shard = listops.generate(LISTOPS, 10, 1)
    texts = [left_associated(listops.decode(row)) for row in shard.rows()]
    rows = [f"{text}\t{label}" for text, label in zip(texts, shard.labels, strict=True)]
    parts = {"train": rows[:6], "val": rows[6:8], "test": rows[8:]}
    return {
        f"basic_{name}.tsv": "".join(f"{line}{ending}" for line in ["Source\tTarget", *lines]).encode()
        for name, lines in parts.items()
    }


def png(level: int, size: int = 32) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((size, size), level, np.uint8)).save(content, "PNG")
    return content.getvalue()


def gallery(folder: str = HARD, *, empty: int | None = None, kind: str = "text") -> dict[str, bytes]:
    """Forty images in two batches; image i, in the order of the metadata, has gray level i and label i % 2."""
    files = {}
    for batch in (10, 9):  # numeric order is the other way round
        begin = 0 if batch == 9 else 20
        lines = [
            [f"imgs/{batch}", f"sample_{i}.png", str(i), str((begin + i) % 2), "1.0", "14", "4", "2", "0.5", "1", "1"]
            for i in range(20)
        ]
        for i in range(20):
            files[f"{folder}/imgs/{batch}/sample_{i}.png"] = b"" if begin + i == empty else png(begin + i)
        if kind == "text":
            content = "".join(" ".join(line) + "\n" for line in lines).encode()
        else:
            saved = io.BytesIO()
            np.save(saved, np.array(lines, np.bytes_ if kind == "bytes" else np.str_))
            content = saved.getvalue()
        files[f"{folder}/metadata/{batch}.npy"] = content
    return files


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, inside in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(inside)
            tar.addfile(info, io.BytesIO(inside))
    return gzip.compress(content.getvalue(), 1)


def nested_tables() -> dict[str, bytes]:
    return {f"{ROOT}/listops-1000/{name}": content for name, content in tables().items()}


def whole_release(**options) -> bytes:
    return packed(BULK | nested_tables() | gallery(**options) | gallery(HARD.replace("32", "64")))


@pytest.fixture
def release(monkeypatch):
    """A server that replaces the published addresses."""
    with serving({"lra_release.gz": Page(whole_release())}) as running:
        monkeypatch.setenv(remote.MIRROR, running.url)
        yield running


def assert_these_expressions(splits):
    shard = listops.generate(LISTOPS, 10, 1)
    found = [split.example(i) for split in (splits.train, splits.valid, splits.test) for i in range(len(split))]
    for ours, theirs in zip(shard.rows(), found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_these_images(splits, count=40):
    levels = [np.asarray(split.tokens).reshape(-1, 1024) for split in (splits.train, splits.valid, splits.test)]
    labels = np.concatenate([split.labels for split in (splits.train, splits.valid, splits.test)])
    levels = np.concatenate(levels)
    assert len(levels) == count
    assert len(set(levels[:, 0])) == count
    assert (levels == levels[:, :1]).all()
    np.testing.assert_array_equal(levels[:, 0] % 2, labels)


# Downloads


def test_listops_takes_the_three_tables_and_says_where_from(release, tmp_path, capsys):
    release.pages |= {name: Page(content) for name, content in tables().items()}
    splits = get("listops").prepare_official(LISTOPS, root=tmp_path)
    assert splits.variant == "official"
    assert_these_expressions(splits)
    addresses = sorted(splits.manifest["source"])
    assert addresses[0] == "https://storage.googleapis.com/long-range-arena/lra_release/listops-1000/basic_test.tsv"
    assert all(len(seen["sha256"]) == 64 for seen in splits.manifest["source"].values())
    assert not any(path == "/lra_release.gz" for _, path, _ in release.seen)
    asked = len(release.seen)
    assert get("listops").prepare_official(LISTOPS, root=tmp_path).sha256 == splits.sha256
    assert len(release.seen) == asked
    assert get("listops").load(LISTOPS, root=tmp_path).sha256 == splits.sha256
    assert get("listops").load(LISTOPS, root=tmp_path, variant="official").sha256 == splits.sha256
    assert get("listops").verify(LISTOPS, root=tmp_path) == []


def test_listops_falls_back_to_the_archive_of_which_nothing_is_kept(release, tmp_path, capsys):
    splits = get("listops").prepare_official(LISTOPS, root=tmp_path)
    assert "Now trying the archive" in capsys.readouterr().err
    assert_these_expressions(splits)
    assert splits.manifest["members"]["count"] == 3
    assert splits.manifest["source"]["url"] == "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    assert splits.manifest["source"]["validator"] == '"one"'
    written = {file.name for file in tmp_path.rglob("*") if file.is_file() and not file.name.startswith(".")}
    assert {name.rpartition(".")[2] for name in written} == {"npy", "json"}


def test_pathfinder_is_read_while_it_arrives_and_the_rest_never_touches_the_disk(release, tmp_path):
    splits = get("pathfinder").prepare_official(PATHFINDER, root=tmp_path)
    assert splits.variant == "official"
    assert_these_images(splits)
    assert splits.manifest["members"]["count"] == 42
    folder = get("pathfinder").status(PATHFINDER, root=tmp_path).folder
    assert {file.name for file in folder.glob("[!.]*")} == {*splits.manifest["arrays"], "index.npy", "manifest.json"}
    assert [file for file in tmp_path.rglob("*") if file.is_file() and folder not in file.parents] == []
    index = np.load(folder / "index.npy")
    np.testing.assert_array_equal(np.concatenate([x.tokens[::1024] for x in (splits.train, splits.valid)]), index[:36])
    assert get("pathfinder").prepare_official(PATHFINDER, root=tmp_path).sha256 == splits.sha256
    assert len(release.asked()) == 1


def test_a_dropped_connection_leaves_the_images_as_they_are(release, tmp_path):
    whole = get("pathfinder").prepare_official(PATHFINDER, root=tmp_path / "whole")
    release.pages["lra_release.gz"].drops = [2_000, 1_000, 500]
    release.seen.clear()
    dropped = get("pathfinder").prepare_official(PATHFINDER, root=tmp_path / "dropped")
    assert release.asked() == [None, "bytes=2000-", "bytes=3000-", "bytes=3500-"]
    assert dropped.sha256 == whole.sha256


def test_a_stream_that_breaks_for_good_leaves_nothing_behind(release, tmp_path):
    release.pages["lra_release.gz"].drops = [2_000, *[0] * 20]
    with pytest.raises(DataMissing, match="4 times in a row after 2,000 bytes"):
        get("pathfinder").prepare_official(PATHFINDER, root=tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    release.pages["lra_release.gz"] = Page(whole_release()[:-3_000])
    with pytest.raises(CorruptFile, match="cut short"):
        get("pathfinder").prepare_official(PATHFINDER, root=tmp_path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_reading_stops_when_the_last_listed_image_has_come(tmp_path):
    seen = []

    def archive():
        for member in members(io.BytesIO(packed(gallery() | {"x/imgs/1/late.png": png(1)})), lambda name: True):
            seen.append(member.name)
            yield member

    pile = images.Pile(archive(), 32, tmp_path, enough=40)
    assert len(pile.listed) == 40
    assert "x/imgs/1/late.png" not in seen


def test_settings_of_another_tier_are_refused_before_the_first_byte(release, tmp_path):
    for name, data in (("listops", replace(LISTOPS, train=5)), ("pathfinder", replace(PATHFINDER, train=5))):
        with pytest.raises(UsageError, match="--tier full"):
            get(name).prepare_official(data, root=tmp_path)
    assert release.seen == []


def test_a_disk_without_room_is_told_before_the_first_byte(release, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000))
    with pytest.raises(StorageError, match=r"needs 81\.9 kB"):
        get("pathfinder").prepare_official(PATHFINDER, root=tmp_path)
    assert release.seen == []


@pytest.mark.parametrize("harm", ["value", "length", "page", "gone"])
def test_what_is_not_listops_is_not_taken_for_it(release, tmp_path, harm):
    files = tables()
    if harm == "value":
        first = files["basic_val.tsv"].split(b"\r\n")
        digit = first[1][-1:]
        first[1] = first[1][:-1] + (b"1" if digit != b"1" else b"2")
        files["basic_val.tsv"] = b"\r\n".join(first)
    elif harm == "length":
        files["basic_val.tsv"] = b"Source\tTarget\r\n( ( [MAX 2 ) ] )\t2\r\n( ( [MAX 2 ) ] )\t2\r\n"
    elif harm == "page":
        files = dict.fromkeys(files, b"<html><body>quota</body></html>")
        release.pages["lra_release.gz"] = Page(b"<html><body>quota</body></html>")
    else:
        files = {}
        del release.pages["lra_release.gz"]
    release.pages |= {name: Page(content) for name, content in files.items()}
    sentence = {"value": "line 2: .* but it evaluates to", "length": "501 .. 1999, found 3"}
    sentence |= {"page": "web page in its place", "gone": "404"}
    with pytest.raises(DataMissing if harm in ("page", "gone") else CorruptFile, match=sentence[harm]):
        get("listops").prepare_official(LISTOPS, root=tmp_path)
    assert list(tmp_path.rglob("manifest.json")) == []


# Files that users already have


@pytest.mark.parametrize("place", places("listops-1000"))
@pytest.mark.parametrize("ending", ["", ".xz"])
def test_listops_is_found_in_every_layout(tmp_path, place, ending):
    folder = tmp_path / "in" / place
    folder.mkdir(parents=True)
    for name, content in tables("\n" if ending else "\r\n").items():
        (folder / f"{name}{ending}").write_bytes(lzma.compress(content) if ending else content)
    named = [tmp_path / "in", folder / f"basic_val.tsv{ending}"] if place == "" else [tmp_path / "in"]
    for path in named:
        splits = get("listops").import_from(path, LISTOPS, root=tmp_path / "data")
        assert splits.variant == "imported"
        assert_these_expressions(splits)


@pytest.mark.parametrize("inside", [ROOT + "/listops-1000/", "listops-1000/", "", "./"])
def test_listops_is_read_out_of_an_archive(tmp_path, inside):
    files = BULK | {f"{inside}{name}": content for name, content in tables().items()}
    (tmp_path / "release.gz").write_bytes(packed(files))
    splits = get("listops").import_from(tmp_path / "release.gz", LISTOPS, root=tmp_path / "data")
    assert_these_expressions(splits)
    assert splits.manifest["file"] == "release.gz"


def test_hostile_and_damaged_archives_are_refused_by_both(tmp_path):
    hostile, damaged = tmp_path / "hostile.gz", tmp_path / "damaged.gz"
    hostile.write_bytes(packed({"../outside.png": b"x"} | nested_tables() | gallery()))
    content = bytearray(whole_release())
    content[len(content) // 3] ^= 255
    damaged.write_bytes(bytes(content))
    for path, sentence in ((hostile, "points outside"), (damaged, "damaged or cut short")):
        with pytest.raises(CorruptFile, match=sentence):
            get("listops").import_from(path, LISTOPS, root=tmp_path / "data")
        with pytest.raises(CorruptFile, match=sentence):
            get("pathfinder").import_from(path, PATHFINDER, root=tmp_path / "data")
    assert not (tmp_path / "outside.png").exists()
    assert [file for file in (tmp_path / "data").rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("kind", ["text", "array", "bytes"])
@pytest.mark.parametrize("inside", [HARD, "pathfinder32/curv_contour_length_14", "curv_contour_length_14", "."])
def test_pathfinder_is_read_out_of_an_archive_whatever_its_metadata_are(tmp_path, inside, kind):
    foreign = gallery("lra_release/pathfinder64/curv_contour_length_14") | gallery("pathfinder32/curv_baseline")
    (tmp_path / "x.tar.gz").write_bytes(packed(gallery(inside, kind=kind) | (foreign if inside == HARD else {})))
    splits = get("pathfinder").import_from(tmp_path / "x.tar.gz", PATHFINDER, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert_these_images(splits)


def test_an_archive_and_its_unpacked_folder_give_the_same_arrays(tmp_path):
    files = gallery(empty=7)
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "x.gz").write_bytes(packed(dict(reversed(files.items()))))
    one = get("pathfinder").import_from(tmp_path / "in", PATHFINDER, root=tmp_path / "one")
    other = get("pathfinder").import_from(tmp_path / "x.gz", PATHFINDER, root=tmp_path / "other")
    assert one.manifest["arrays"] == other.manifest["arrays"]
    assert one.manifest["index"] == other.manifest["index"]
    assert one.manifest["skipped_empty"] == other.manifest["skipped_empty"] == 1
    assert_these_images(one, 39)


@pytest.mark.parametrize("harm, sentence", [("absent", "list 1 images that are not"), ("text", "not a readable PNG")])
def test_an_archive_with_absent_or_broken_images_is_refused(tmp_path, harm, sentence):
    files = gallery()
    if harm == "absent":
        del files[f"{HARD}/imgs/9/sample_4.png"]
    else:
        files[f"{HARD}/imgs/9/sample_4.png"] = b"\x89PNG\r\n\x1a\nnothing"
    (tmp_path / "x.gz").write_bytes(packed(files))
    with pytest.raises(CorruptFile, match=f"{sentence}|sample_4.*{sentence}"):
        get("pathfinder").import_from(tmp_path / "x.gz", PATHFINDER, root=tmp_path / "data")
    assert [file for file in (tmp_path / "data").rglob("*") if file.is_file()] == []


def test_two_folders_of_one_name_in_an_archive_are_refused(tmp_path):
    (tmp_path / "x.gz").write_bytes(packed(gallery("a") | gallery("b")))
    with pytest.raises(CorruptFile, match="twice"):
        get("pathfinder").import_from(tmp_path / "x.gz", PATHFINDER, root=tmp_path / "data")


def test_the_reference_samples_are_read_as_arrays(reference, tmp_path):
    path = reference("pathfinder/pathfinder32_hard.npz")
    data = pathfinder.Data(train=320, valid=40, test=40)
    for place in (path, path.parent):
        splits = get("pathfinder").import_from(place, data, root=tmp_path)
        assert splits.variant == "imported"
        index = np.load(get("pathfinder").status(data, root=tmp_path).folder / "index.npy")
        with np.load(path) as sample:
            np.testing.assert_array_equal(splits.train.tokens, sample["x"][index[:320]].reshape(-1))
            np.testing.assert_array_equal(splits.test.labels, sample["y"][index[360:]])


@pytest.mark.parametrize(
    "arrays, sentence",
    [
        ({"x": np.zeros((40, 32, 32), np.uint8)}, "y"),
        ({"x": np.zeros((40, 32, 33), np.uint8), "y": np.zeros(40)}, r"found uint8 \[40, 32, 33\]"),
        ({"x": np.zeros((40, 32, 32)), "y": np.zeros(40)}, "found float64"),
        ({"x": np.zeros((40, 32, 32), np.uint8), "y": np.full(40, 2)}, "label 0 or 1"),
        ({"x": np.zeros((40, 32, 32), np.uint8), "y": np.zeros(40, object)}, "x .* and y"),
    ],
)
def test_arrays_that_are_not_images_and_labels_are_refused(tmp_path, arrays, sentence):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(CorruptFile, match=sentence):
        get("pathfinder").import_from(tmp_path / "x.npz", PATHFINDER, root=tmp_path / "data")


# Splits


def test_the_published_splits_are_their_rules_and_cut_80_10_10():
    import torch

    order = torch.randperm(200_000, generator=torch.Generator().manual_seed(42)).numpy()
    rules = {"longspan": pathfinder.split_indices(200_000, 0)}
    rules["seed42"] = {"valid": np.sort(order[160_000:180_000]), "test": np.sort(order[180_000:])}
    for name, rule in rules.items():
        found = published(f"pathfinder-{name}")
        assert set(found) == {"valid", "test"}
        for split, rows in found.items():
            np.testing.assert_array_equal(rows, rule[split])
            assert len(rows) == 20_000
        assert len(np.intersect1d(found["valid"], found["test"])) == 0


@pytest.mark.parametrize("rule", ["longspan", "seed42"])
@pytest.mark.parametrize("count", [10, 39, 200_000])
def test_every_image_is_in_exactly_one_split(monkeypatch, rule, count):
    monkeypatch.setattr(pathfinder, "PUBLISHED", 200_000)
    monkeypatch.setattr(pathfinder, "published", published)
    parts = pathfinder.divide(count, pathfinder.Data(split=rule))
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(count))
    assert [len(parts[split]) for split in ("valid", "test")] == [count // 10] * 2


def test_the_split_of_other_papers_is_that_of_random_split(tmp_path):
    import torch

    official_folder(tmp_path / "in", [0, 1] * 20, empty=(3,))
    data = replace(PATHFINDER, split="seed42")
    splits = get("pathfinder").import_from(tmp_path / "in", data, root=tmp_path / "data")
    index = np.load(get("pathfinder").status(data, root=tmp_path / "data").folder / "index.npy")
    kept = [row for row in range(40) if row != 21]  # level 3 is line 1 of the second batch
    theirs = torch.utils.data.random_split(kept, [33, 3, 3], generator=torch.Generator().manual_seed(42))
    assert [sorted(part) for part in theirs] == [index[:33].tolist(), index[33:36].tolist(), index[36:].tolist()]
    assert splits.manifest["settings"]["split"] == "seed42"


def test_that_split_is_refused_for_images_drawn_here_and_unknown_ones_altogether(tmp_path):
    with pytest.raises(UsageError, match="--official"):
        get("pathfinder").load(replace(PATHFINDER, split="seed42"), root=tmp_path)
    with pytest.raises(UsageError, match="longspan, seed42"):
        replace(PATHFINDER, split="tfds")


# The command line


def test_the_command_line_downloads_and_imports(release, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv(remote.MIRROR)
    monkeypatch.setattr(remote, "_announced", set())
    counts = ["--set", "train=6", "--set", "valid=2", "--set", "test=2"]

    def call(*words):
        return CliRunner().invoke(app, ["data", *words, *counts])

    done = call("prepare", "listops", "--official", "--from-mirror", release.url)
    assert done.exit_code == 0, done.output
    assert "listops (official) is ready" in done.output
    assert done.stderr.count("listops: released with arXiv:2011.04006") == 1
    (tmp_path / "x.gz").write_bytes(packed(nested_tables()))
    done = call("import", "listops", str(tmp_path / "x.gz"))
    assert done.exit_code == 0, done.output
    manifests = list((tmp_path / "data").rglob("manifest.json"))
    assert [json.loads(path.read_text())["variant"] for path in manifests] == ["imported"]
    done = call("prepare", "listops", "--official", "--from-mirror", "ftp://nowhere")
    assert done.exit_code == 2
    release.pages.clear()
    done = call("prepare", "listops", "--official", "--from-mirror", release.url)
    assert done.exit_code == 3
    assert "longspan data import listops PATH" in done.stderr
