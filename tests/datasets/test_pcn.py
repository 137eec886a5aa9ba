"""PCN: the same shapes from every layout, errors that name what is wrong, and stand-ins marked as such."""

import csv
import hashlib
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from longspan.cli.app import app
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import pcn
from longspan.datasets.clouds import layouts
from longspan.datasets.pcn import Data, Pcn
from longspan.datasets.standins.solids import SOLIDS, make_solid

SMALL = Data(partial=64, points=128, train=6, valid=3, test=3, standin=True)
MODELS = {"train": ["a1", "a2"], "val": ["a3"], "test": ["a4", "a5"]}


@pytest.fixture(autouse=True)
def _few_points(monkeypatch):
    monkeypatch.setattr(layouts, "PER_POINT", 8)
    monkeypatch.setattr(layouts, "DENSE", 5_000)


def cloud(seed: int, count: int = 300) -> np.ndarray:
    return make_solid(np.random.default_rng(seed), "box", count)


def write_pcd(path: Path, points: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\n"
    head += f"WIDTH {len(points)}\nHEIGHT 1\nPOINTS {len(points)}\nDATA binary\n"
    path.write_bytes(head.encode() + points.astype("<f4").tobytes())


def write_pcn(folder: Path) -> Path:
    """Two categories in the published layout."""
    index = [{"taxonomy_id": f"0{i}", "taxonomy_name": name} | MODELS for i, name in enumerate(("chair", "lamp"))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "PCN.json").write_text(json.dumps(index))
    for number, entry in enumerate(index):
        for split, models in MODELS.items():
            for model in models:
                seed = number * 100 + int(model[1])
                write_pcd(folder / split / "complete" / entry["taxonomy_id"] / f"{model}.pcd", cloud(seed))
                for view in range(8 if split == "train" else 1):
                    path = folder / split / "partial" / entry["taxonomy_id"] / model / f"{view:02d}.pcd"
                    write_pcd(path, cloud(seed)[: 40 + view])
    return folder


def write_furniture(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ids, splits = ["c1", "c2", "c3", "c4", "u1"], ["train", "valid", "test", "test", "unseen"]
    with (folder / "models.tsv").open("w", newline="") as handle:
        rows = csv.writer(handle, delimiter="\t")
        rows.writerow(["id", "category", "split"])
        rows.writerows(zip(ids, ["chair"] * 4 + ["plant"], splits, strict=True))
    points = np.stack([cloud(i) for i in range(4)]).astype(np.float16)
    np.savez(folder / "chair.npz", points=points, ids=np.array(ids[:4]), split=np.array(splits[:4]))
    np.savez(folder / "partial_10.npz", points=cloud(2, 50), offsets=np.array([0, 50]), ids=np.array(["c3"]))
    return folder


def write_shapes(folder: Path, count: int = 5) -> Path:
    for category in ("box", "tube"):
        (folder / category).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            np.savetxt(folder / category / f"{i}.xyz", 7 + 3 * cloud(i, 300 + i))
    return folder


# ------------------------------------------------------------------------------------------------------------- layouts


def test_the_published_layout_keeps_its_split_order_views_and_coordinates(tmp_path):
    splits = Pcn().import_from(write_pcn(tmp_path / "PCN"), root=tmp_path)
    assert splits.variant == "imported"  # not the published list
    assert splits.counts == {"train": 4, "valid": 2, "test": 4}
    assert splits.test.ids == ["a4", "a5", "a4", "a5"]
    assert [splits.test.categories[kind] for kind in splits.test.category] == ["chair", "chair", "lamp", "lamp"]
    assert (splits.train.views, splits.valid.views, splits.test.views) == (8, 1, 1)
    np.testing.assert_array_equal(splits.train.complete[1], cloud(2))
    np.testing.assert_array_equal(splits.train.view(3, 7), cloud(102)[:47])
    assert splits.train.complete.dtype == np.float32
    assert splits.train.training
    assert not splits.valid.training


def test_the_published_list_makes_it_official(tmp_path, monkeypatch):
    folder = write_pcn(tmp_path / "x")
    monkeypatch.setattr(layouts, "PCN_JSON", hashlib.sha256((folder / "PCN.json").read_bytes()).hexdigest())
    assert Pcn().import_from(folder, root=tmp_path).variant == "official"


def test_a_single_view_may_be_a_file_and_not_a_folder(tmp_path):
    folder = write_pcn(tmp_path / "PCN")
    for view in list(folder.glob("test/partial/*/*/00.pcd")):
        view.rename(view.parent.with_suffix(".pcd"))
    assert len(Pcn().import_from(folder, root=tmp_path).test) == 4


@pytest.mark.parametrize("packed", ["x.tar.gz", "x.zip"])
def test_an_archive_is_read_like_the_folder_in_it(tmp_path, packed):
    folder, path = write_pcn(tmp_path / "PCN"), tmp_path / packed
    if packed.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.rglob("*.*"):
                archive.write(file, file.relative_to(tmp_path))
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, "PCN")
    splits = [Pcn().import_from(source, root=tmp_path / "data" / source.name) for source in (folder, path)]
    assert splits[0].manifest["arrays"] == splits[1].manifest["arrays"]
    assert not list((tmp_path / "data").rglob("unpacked"))


def test_a_member_that_leads_outside_the_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("../evil.xyz", "1 2 3\n")
    with pytest.raises(CorruptFile, match="points outside the archive"):
        Pcn().import_from(tmp_path / "x.zip", root=tmp_path)
    assert not list(tmp_path.rglob("evil*"))


def test_a_split_list_that_leads_outside_its_folder_is_refused(tmp_path):
    folder = write_pcn(tmp_path / "PCN")
    index = json.loads((folder / "PCN.json").read_text())
    index[0]["train"] = ["../../secret"]
    (folder / "PCN.json").write_text(json.dumps(index))
    with pytest.raises(CorruptFile, match=r"each a plain name or a list of them; found '\.\./\.\./secret'"):
        Pcn().import_from(folder, root=tmp_path)


def test_furniture_is_tested_on_its_reference_views_and_says_what_it_leaves_out(tmp_path):
    splits = Pcn().import_from(write_furniture(tmp_path / "f"), root=tmp_path)
    assert splits.variant == "imported"  # the layout, but not the files
    assert (splits.train.ids, splits.valid.ids, splits.test.ids) == (["c1"], ["c2"], ["c3"])
    np.testing.assert_array_equal(splits.test.view(0), cloud(2, 50).astype(np.float16))
    assert splits.train.complete.dtype == np.float16
    assert (splits.train.views, splits.test.views) == (8, 1)
    assert splits.manifest["layout"]["left_out"] == 2
    assert splits.manifest["layout"]["left_out_test"] == ["c4"]


def test_shapes_of_ones_own_are_centred_scaled_and_split_by_their_ids(tmp_path):
    splits = Pcn().import_from(write_shapes(tmp_path / "s"), root=tmp_path)
    assert splits.counts == {"train": 6, "valid": 2, "test": 2}
    every = [*splits.train.ids, *splits.valid.ids, *splits.test.ids]
    assert sorted(every) == [f"{category}/{i}" for category in ("box", "tube") for i in range(5)]
    assert splits.train.complete.shape[1] == 300  # the smallest cloud
    for points in splits.train.complete:
        size = points.max(axis=0) - points.min(axis=0)
        assert np.linalg.norm(size) == pytest.approx(1, abs=0.05)  # some points were left out
        assert abs(points).max() <= 0.5
    again = Pcn().import_from(tmp_path / "s", root=tmp_path / "again")
    assert again.manifest["arrays"] == splits.manifest["arrays"]


def test_meshes_are_sampled_by_area(tmp_path):
    corners = "".join(f"v {x} {y} {z}\n" for x in (0, 2) for y in (0, 1) for z in (0, 1))
    faces = "f 1 2 4 3\nf 5 7 8 6\nf 1 5 6 2\nf 3 4 8 7\nf 1 3 7 5\nf 2 6 8 4\n"
    for i in range(3):
        (tmp_path / "m" / "box").mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / "box" / f"{i}.obj").write_text(corners + faces)
    splits = Pcn().import_from(tmp_path / "m", root=tmp_path)
    assert splits.train.complete.shape == (1, 16_384, 3)
    ends = np.isclose(abs(splits.train.complete[0, :, 0]), 1 / 6**0.5, atol=1e-6)
    assert ends.mean() == pytest.approx(2 / 10, abs=0.01)


# ----------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    "harm, error, words",
    [
        (lambda f: (f / "PCN.json").unlink(), DataMissing, "not its split list; put PCN.json"),
        (lambda f: (f / "PCN.json").write_text("{"), CorruptFile, "is not JSON"),
        (lambda f: (f / "PCN.json").write_text("[]"), CorruptFile, "should list categories with taxonomy_id"),
        (
            lambda f: (f / "train/partial/00/a1/05.pcd").unlink(),
            DataMissing,
            r"lists chair a1, but there is no .*05.pcd; get the missing files",
        ),
        (lambda f: (f / "test/complete/01/a4.pcd").unlink(), DataMissing, "lists lamp a4, but there is no"),
        (
            lambda f: write_pcd(f / "val/complete/00/a3.pcd", cloud(3, 200)),
            CorruptFile,
            "300 points and 1 views, the models before it in valid have 200",
        ),
        (lambda f: (f / "val/complete/00/a3.pcd").write_bytes(b"junk"), CorruptFile, "has no line DATA"),
    ],
)
def test_what_is_missing_or_wrong_in_pcn_is_said_and_nothing_is_left(tmp_path, harm, error, words):
    folder = write_pcn(tmp_path / "PCN")
    harm(folder)
    with pytest.raises(error, match=words):
        Pcn().import_from(folder, root=tmp_path / "data")
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "harm, words",
    [
        (lambda f: np.savez(f / "chair.npz", points=np.zeros((1, 300, 3)), ids=np.array(["c9"])), "has no such model"),
        (
            lambda f: np.savez(
                f / "partial_10.npz", points=cloud(0, 50), offsets=np.array([0, 60]), ids=np.array(["c3"])
            ),
            "offsets should rise from 0 to 50",
        ),
        (lambda f: (f / "models.tsv").write_text("id\tcategory\tsplit\nc1\t../x\ttrain\n"), "line 2: expected id"),
        (lambda f: (f / "models.tsv").write_bytes(b"\xff\xfe"), "is not a table in UTF-8"),
    ],
)
def test_what_is_wrong_with_furniture_is_said(tmp_path, harm, words):
    folder = write_furniture(tmp_path / "f")
    harm(folder)
    with pytest.raises(CorruptFile, match=words):
        Pcn().import_from(folder, root=tmp_path)


def test_folders_without_shapes_or_with_too_few_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="has no point clouds"):
        Pcn().import_from(tmp_path / "empty", root=tmp_path)
    with pytest.raises(UsageError, match="none of which has the 3 that make"):
        Pcn().import_from(write_shapes(tmp_path / "few", 2), root=tmp_path)
    np.savetxt(tmp_path / "few" / "box" / "tiny.xyz", cloud(0, 30))
    with pytest.raises(CorruptFile, match="has 30 points; a cloud to complete needs at least 256"):
        Pcn().import_from(tmp_path / "few", root=tmp_path)


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["prepare", "pcn"], 3, "cannot be downloaded by a program"),
        (["import", "pcn", "{nowhere}"], 3, "nothing at"),
        (["import", "pcn", "{broken}"], 2, "expected rows of numbers"),
    ],
)
def test_the_command_line_says_what_is_wrong_and_exits_with_its_code(words, code, said, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    broken = write_shapes(tmp_path / "broken", 3)
    (broken / "box" / "1.xyz").write_text("a b c\n")
    places = {"nowhere": tmp_path / "nowhere", "broken": broken}
    done = CliRunner().invoke(app, ["data", *(word.format(**places) for word in words)])
    assert getattr(done.exception, "exit_code", done.exit_code) == code
    assert said in f"{done.output} {done.exception}"


def test_altered_arrays_are_found(tmp_path):
    Pcn().import_from(write_pcn(tmp_path / "PCN"), root=tmp_path)
    assert Pcn().verify(root=tmp_path) == []
    assert Pcn().status(root=tmp_path).counts == {"train": 4, "valid": 2, "test": 4}
    path = tmp_path / "pcn" / "whole" / "test.partial.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "has changed since it was written" in Pcn().verify(root=tmp_path)[0]


@pytest.mark.parametrize(
    "name, values, words",
    [
        ("test.edges", np.array([0, 50, 40, 90, 160]), "should rise from 0"),
        ("test.labels", np.full(4, 9, np.uint8), "should be 0 .. 1, found 9"),
        ("test.complete", np.full((4, 300, 3), np.nan, np.float32), "finite coordinates"),
        ("test.partial", np.zeros((160, 2), np.float32), "should be points"),
    ],
)
def test_arrays_that_do_not_fit_one_another_are_found(name, values, words, tmp_path):
    splits = Pcn().import_from(write_pcn(tmp_path / "PCN"), root=tmp_path)
    arrays = {path.stem: np.load(path) for path in (tmp_path / "pcn" / "whole").glob("*.npy")}
    assert not list(Pcn().range_faults(arrays, splits.manifest))
    assert any(words in fault for fault in Pcn().range_faults(arrays | {name: values}, splits.manifest))


# ------------------------------------------------------------------------------------------------------------ stand-ins


@pytest.mark.parametrize("kind", SOLIDS)
def test_a_solid_fills_a_box_of_diagonal_one(kind):
    points = make_solid(np.random.default_rng(3), kind, 20_000)
    low, high = points.min(axis=0), points.max(axis=0)
    np.testing.assert_allclose(low + high, 0, atol=0.01)
    assert np.linalg.norm(high - low) == pytest.approx(1, abs=0.01)


def test_stand_ins_are_marked_and_have_the_counts_asked_for(tmp_path):
    splits = pcn.load(SMALL, root=tmp_path)
    assert splits.variant == "standin"
    assert splits.counts == {"train": 6, "valid": 3, "test": 3}
    assert splits.train.complete.shape == (6, 128, 3)
    assert splits.train.categories == list(SOLIDS)
    again = pcn.load(SMALL, root=tmp_path / "again")
    assert again.sha256 == splits.sha256
    with pytest.raises(DataMissing, match="PCN is not in"):
        Pcn().load(SMALL, root=tmp_path, real=True)


def test_validation_on_test_is_the_test_split(tmp_path):
    splits = pcn.load(Data(64, 128, "test", train=6, valid=3, test=2, standin=True), root=tmp_path)
    assert splits.valid.ids == splits.test.ids
    assert splits.counts["valid"] == 2


def test_fewer_models_and_points_are_evenly_spaced(tmp_path):
    whole = Pcn().import_from(write_pcn(tmp_path / "PCN"), root=tmp_path)
    few = pcn.load(Data(points=100, test=2), root=tmp_path)
    assert few.test.index.tolist() == [0, 2]
    np.testing.assert_array_equal(few.test.complete, whole.test.complete[::2, ::3])
    np.testing.assert_array_equal(few.test.view(1), whole.test.view(2))


def test_samples_are_told_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    told = Pcn().samples(SMALL, 2)
    assert "128 points; views of" in str(told[0].content)
    drawn = Pcn().draw_samples(SMALL, 2, tmp_path / "x.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "pcn").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"partial": 0}, {"points": 0}, {"validation": "train"}, {"train": 0}, {"standin": True}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UsageError):
        Data(**wrong)


@pytest.mark.full
def test_the_furniture_is_known_by_its_content(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "PER_POINT", 2)
    splits = Pcn().import_from(reference("pointcloud_furniture"), root=tmp_path)
    assert (splits.variant, splits.counts) == ("furniture", {"train": 174, "valid": 20, "test": 10})
    assert splits.test.complete.shape == (10, 8_192, 3)


@pytest.mark.full
def test_the_airplanes_are_known_by_their_content(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "PER_POINT", 2)
    splits = Pcn().import_from(reference("pointcloud"), root=tmp_path)
    assert (splits.variant, splits.counts) == ("airplanes", {"train": 44, "valid": 4, "test": 12})


def test_the_scans_of_pcn_are_read(reference):
    from longspan.datasets.clouds.files import read_shape

    sizes = sorted(len(read_shape(path)) for path in reference("pointcloud/pcn_demo").glob("*.pcd"))
    assert (sizes[0], sizes[-1], len(sizes)) == (753, 1_715, 6)
