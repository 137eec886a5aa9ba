"""The layout of a folder of shapes: PCN as published, a known substitute for it, or the user's own shapes.

    pcn         {train,val,test}/{complete,partial}/<synset>/<model>..., with PCN.json, the split list
    furniture   models.tsv, an .npz file per category, partial_10.npz with reference views of ten test models
    airplanes   modelnet40_airplane_60x8192.npz
    shapes      <category>/**/*.{off,obj,ply,pcd,xyz,txt,npz}: meshes and clouds

`plan` says which models each split has; a model is read, and its views are drawn, only when it is needed. The views of
a model depend only on its id.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.clouds.camera import random_pose, seen
from longspan.datasets.clouds.files import ENDINGS, ending, read_bytes, read_npz, read_shape
from longspan.datasets.clouds.mesh import Mesh
from longspan.datasets.clouds.numbers import checked
from longspan.datasets.clouds.surface import between, centred, sample
from longspan.datasets.generation.arrays import hash_file

POINTS = 16_384  # in a complete cloud of PCN, and in a mesh that is sampled here
FEWEST = 256  # points of a cloud that can be completed
VIEWS = {"train": 8, "valid": 4, "test": 4}  # drawn for a model that comes without views
PER_POINT = 64  # points added per point of a cloud before the camera looks at it
DENSE = 1 << 19  # points sampled from a mesh for the camera to look at
PCN_JSON = "ead83212d420fcee5fc461603e76bb88131f3faadeb6132e8657cfa04386c9d2"
AIRPLANES = ("modelnet40_airplane_60x8192.npz", "ed5be794028585927bdeef56b70a4b38b11e35c9ff5b15e4c41d61755e2c1bc1")
FURNITURE = {
    "cabinet.npz": "a0a337b9c5d442073d01d344f8e5bd6122c995c76812987c2ea9d3b58e898929",
    "car.npz": "d9b1705f0f96882a815fb2f18975551402adcfd6172ed43e923603a96d308497",
    "chair.npz": "7992a6a4657f39a87a1b57a321b98c410e66034d881d12fcd131bc18796cfe9b",
    "lamp.npz": "560588a51b1cd1d3ecf340a9658ccc36b563dbd71b53c6487c994336838ad3d3",
    "models.tsv": "20989991c5e31c4a982fb2c324ec1ca5b1572d8a1c06b1c92ccfb55fac1dd679",
    "partial_10.npz": "442735bbc072cc068a8144878cfd31c018a1ae9c3817e95d74b55a19cc847e52",
    "sofa.npz": "0b1107ff1c1692b649ba11ab3088bda30a9349cd5d7a252fa3e691fce2d07137",
    "table.npz": "a3b2e346763307db94524ee8a19a517163fd4dc1b66efe9e43327b50aa700b4a",
}


@dataclass(frozen=True, eq=False)
class Shape:
    """A model: its complete cloud, and partial views of it from one or more sides."""

    id: str
    category: str
    complete: np.ndarray  # float32 [points 3]
    partial: list[np.ndarray]  # float32 [any 3] each


@dataclass(frozen=True)
class Plan:
    """The models of every split, in order, each a function that reads it."""

    variant: str
    categories: list[str]
    models: Mapping[str, list[Callable[[], Shape]]]
    dtype: str = "float32"
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the manifest


def plan(source: Path) -> Plan:
    """The layout of a folder, or of the only folder in it."""
    for folder in (source, source / "PCN", source / "ShapeNetCompletion"):
        if (folder / "train" / "complete").is_dir() or (folder / "PCN.json").is_file():
            return _pcn(folder)
    for folder in (source, *_only_folder(source)):
        if (folder / "models.tsv").is_file() and (folder / "partial_10.npz").is_file():
            return _furniture(folder)
        if (folder / AIRPLANES[0]).is_file():
            return _airplanes(folder / AIRPLANES[0])
    files = sorted(path for path in source.rglob("*") if ending(path) in ENDINGS and path.is_file())
    if not files:
        raise DataMissing(
            f"{source} has no point clouds: neither train/complete and PCN.json, nor models.tsv with .npz files, nor "
            f"<category>/<model> as {', '.join(ENDINGS)}; see docs/data.md for the layouts."
        )
    return _shapes(source, files)


def _only_folder(source: Path) -> Iterable[Path]:
    inside = list(source.iterdir()) if source.is_dir() else []
    return inside if len(inside) == 1 and inside[0].is_dir() else ()


# PCN


def _pcn(folder: Path) -> Plan:
    index = next((path for path in (folder / "PCN.json", folder.parent / "PCN.json") if path.is_file()), None)
    if index is None:
        raise DataMissing(
            f"{folder} has PCN's clouds but not its split list; put PCN.json of github.com/yuxumin/PoinTr (data/PCN) "
            "beside train, val and test."
        )
    content, models = read_bytes(index), {"train": [], "valid": [], "test": []}
    entries = _entries(content, index)
    for entry in entries:
        for split, spelling in (("train", "train"), ("valid", "val"), ("test", "test")):
            place = (folder / spelling, entry["taxonomy_id"], entry["taxonomy_name"])
            models[split] += [partial(_pcn_model, *place, model) for model in entry[spelling]]
    published = hashlib.sha256(content).hexdigest() == PCN_JSON
    names = [entry["taxonomy_name"] for entry in entries]
    return Plan("official" if published else "imported", names, models, facts={"views": "as published"})


def _entries(content: bytes, index: Path) -> list[dict]:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{index} is not JSON ({error!r:.80}); get it again.") from error
    keys = ("taxonomy_id", "taxonomy_name", "train", "val", "test")
    words = [
        word
        for entry in (entries if isinstance(entries, list) else [None])
        for word in _words(entry if isinstance(entry, dict) else {}, keys)
    ]
    wrong = next((word for word in words if not _is_name(word)), None)
    if not words or wrong is not None:
        raise CorruptFile(
            f"{index} should list categories with {', '.join(keys)}, each a plain name or a list of them; "
            f"found {wrong!r:.60}."
        )
    return entries


def _words(entry: dict, keys: Iterable[str]) -> Iterable[Any]:
    for key in keys:
        value = entry.get(key)
        yield from value if isinstance(value, list) and key in ("train", "val", "test") else [value]


def _is_name(word: Any) -> bool:
    """Whether it is safe as part of a path: it cannot lead elsewhere."""
    return isinstance(word, str) and 0 < len(word) <= 100 and word.replace("_", "").replace("-", "").isalnum()


def _pcn_model(folder: Path, synset: str, category: str, model: str) -> Shape:
    whole = folder / "complete" / synset / f"{model}.pcd"
    views = folder / "partial" / synset / model
    wanted = [views / f"{view:02d}.pcd" for view in range(8 if folder.name == "train" else 1)]
    if folder.name != "train" and not wanted[0].is_file():
        wanted = [views.with_suffix(".pcd")]  # in some copies the only view has no folder of its own
    absent = next((path for path in (whole, *wanted) if not path.is_file()), None)
    if absent is not None:
        raise DataMissing(f"PCN.json lists {category} {model}, but there is no {absent}; get the missing files.")
    return Shape(model, category, _cloud(whole), [_cloud(path) for path in wanted])


def _cloud(path: Path) -> np.ndarray:
    points = read_shape(path)
    assert isinstance(points, np.ndarray)
    return points


# Substitutes for it


def _furniture(folder: Path) -> Plan:
    rows = _table(folder / "models.tsv")
    known = all((folder / name).is_file() and hash_file(folder / name) == digest for name, digest in FURNITURE.items())
    references = _references(folder / "partial_10.npz")
    models: dict[str, list] = {"train": [], "valid": [], "test": []}
    left_out: list[str] = []
    clouds: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        name, category, split = row["id"], row["category"], row["split"]
        if split not in models or (split == "test" and name not in references):
            left_out.append(name)
            continue
        if category not in clouds:
            arrays = read_npz(folder / f"{category}.npz", "points", "ids")
            clouds[category] = dict(zip(arrays["ids"].tolist(), arrays["points"], strict=False))
        if name not in clouds[category]:
            raise CorruptFile(f"models.tsv lists {name}, but {folder / f'{category}.npz'} has no such model.")
        complete = checked(clouds[category][name], f"{folder / f'{category}.npz'}, {name}")
        views = [references[name]] if split == "test" else None
        models[split].append(partial(_viewed, name, category, split, complete, views))
    facts = {
        "views": {"train": VIEWS["train"], "valid": VIEWS["valid"], "test": "the reference views"},
        "left_out": len(left_out),
        "left_out_test": [row["id"] for row in rows if row["split"] == "test" and row["id"] in left_out],
    }
    return Plan("furniture" if known else "imported", sorted(clouds), models, "float16", facts)


def _table(path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(read_bytes(path).decode().splitlines(), delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFile(f"{path} is not a table in UTF-8 ({error}); get it again.") from error
    for number, row in enumerate(rows, start=2):
        if not all(_is_name(row.get(name)) for name in ("category", "split")) or not row.get("id"):
            raise CorruptFile(f"{path}, line {number}: expected id, category and split, found {dict(row)!r:.80}.")
    return rows


def _references(path: Path) -> dict[str, np.ndarray]:
    arrays = read_npz(path, "points", "offsets", "ids")
    points, offsets, ids = checked(arrays["points"], str(path)), arrays["offsets"], arrays["ids"]
    rising = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) == len(ids) + 1
    if not rising or offsets[0] != 0 or offsets[-1] != len(points) or np.any(np.diff(offsets.astype(np.int64)) < 1):
        raise CorruptFile(f"{path}: offsets should rise from 0 to {len(points)} over {len(ids)} views; get it again.")
    return {name: points[a:b] for name, a, b in zip(ids.tolist(), offsets[:-1], offsets[1:], strict=True)}


def _airplanes(path: Path) -> Plan:
    arrays = read_npz(path, "points_i16", "scale", "names", "split")
    names, clouds = arrays["names"].tolist(), arrays["points_i16"]
    if clouds.ndim != 3 or clouds.shape[2] != 3 or not len(names) == len(clouds) == len(arrays["split"]):
        raise CorruptFile(f"{path}: expected clouds [n points 3] with as many names and splits; get it again.")
    train = [name for name, split in zip(names, arrays["split"], strict=True) if split == "train"]
    held = set(_by_digest(train)[: len(train) // 10])  # ModelNet has no validation split
    models: dict[str, list] = {"train": [], "valid": [], "test": []}
    for name, cloud, split in zip(names, clouds, arrays["split"].tolist(), strict=True):
        points = checked(cloud * np.float64(arrays["scale"]), f"{path}, {name}")
        middle, diagonal = centred(points, f"{path}, {name}")
        chosen = "valid" if name in held else split
        if chosen not in models:
            raise CorruptFile(f"{path}: the split of {name} should be train or test, found {split!r:.40}.")
        complete = ((points - middle) / diagonal).astype(np.float32)
        models[chosen].append(partial(_viewed, name, "airplane", chosen, complete, None))
    variant = "airplanes" if hash_file(path) == AIRPLANES[1] else "imported"
    return Plan(variant, ["airplane"], models, "float16", {"views": VIEWS})


# The user's own shapes


def _shapes(source: Path, files: list[Path]) -> Plan:
    """A top-level folder is a category; validation and test each get a tenth of it, by sha256 of the id."""
    by_category: dict[str, dict[str, Path]] = {}
    for path in files:
        inner = path.relative_to(source)
        category = inner.parts[0] if len(inner.parts) > 1 else source.resolve().name
        name = inner.as_posix().removesuffix(".xz").removesuffix(ending(path))
        if name in by_category.setdefault(category, {}):
            raise CorruptFile(f"{source} has {name} in two files; leave one of them.")
        by_category[category][name] = path
    points = min([POINTS, *(_points_of(path) for path in files)])
    models: dict[str, list] = {"train": [], "valid": [], "test": []}
    for category, found in by_category.items():
        order, tenth = _by_digest(found), max(1, round(len(found) / 10)) if len(found) >= 3 else 0
        split_of = dict.fromkeys(order[:tenth], "test") | dict.fromkeys(order[tenth : 2 * tenth], "valid")
        for name, path in found.items():
            split = split_of.get(name, "train")
            models[split].append(partial(_shape, name, category, split, path, points))
    if not models["test"]:
        raise UsageError(
            f"{source} has {len(files)} shapes in {len(by_category)} categories, none of which has the 3 that make a "
            "training, a validation and a test split; put more in a category's folder."
        )
    return Plan("imported", sorted(by_category), models, facts={"views": VIEWS, "points": points})


def _points_of(path: Path) -> int:
    shape = read_shape(path)
    if isinstance(shape, Mesh):
        return POINTS
    if len(shape) < FEWEST:
        raise CorruptFile(f"{path} has {len(shape)} points; a cloud to complete needs at least {FEWEST}.")
    return len(shape)


def _shape(name: str, category: str, split: str, path: Path, points: int) -> Shape:
    shape, rng = read_shape(path), np.random.default_rng(derive(0, "pcn", "points", name))
    whole = shape.vertices[np.unique(shape.triangles)] if isinstance(shape, Mesh) else shape
    middle, diagonal = centred(whole.astype(np.float64), str(path))
    if not isinstance(shape, Mesh):
        chosen = shape[rng.choice(len(shape), points, replace=False)]
        return _viewed(name, category, split, ((chosen - middle) / diagonal).astype(np.float32), None)
    complete, dense = ((sample(shape, n, rng, str(path)) - middle) / diagonal for n in (points, DENSE))
    return Shape(name, category, complete.astype(np.float32), _views(dense, name, split))


def _viewed(name: str, category: str, split: str, complete: np.ndarray, views: list[np.ndarray] | None) -> Shape:
    """A cloud with its own views, or with views drawn by the camera."""
    if views is None:
        rng = np.random.default_rng(derive(0, "pcn", "surface", name))
        views = _views(between(complete.astype(np.float64), PER_POINT, rng), name, split)
    return Shape(name, category, complete, views)


def _views(dense: np.ndarray, name: str, split: str) -> list[np.ndarray]:
    rng = np.random.default_rng(derive(0, "pcn", "views", name))
    return [seen(dense, random_pose(rng)).astype(np.float32) for _ in range(VIEWS[split])]


def _by_digest(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
