"""PCN: what a depth camera sees of a shape from one side, and the whole shape as 16,384 points (arXiv:1808.00671).

An example is a model of ShapeNet in one of eight categories: its surface as points, and partial views of it, eight for
training, one for validation and for test. Coordinates are used as they are stored: the centre of the bounding box of a
model is the origin, its diagonal is 1, y is up.

PCN cannot be downloaded by a program. Other folders of shapes can take its place (`clouds/layouts.py` says which): the
variant is then the name of a known substitute, `furniture` or `airplanes`, or else `imported`. Models without views get
them from a virtual camera. True clouds keep their number of points, 8,192 in both substitutes; the distances that score
a completion accept clouds of different sizes.

On disk, for each split: `complete` [models points 3], `partial` [.. 3] with all views one after another, `edges`
[models * views + 1] between them, `labels` [models], numbers of categories, and `ids` [models width], UTF-8; and
`categories` [categories width], their names. Clouds of substitutes that were published in float16 stay so.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.core.archive import is_archive, members
from longspan.core.environment import available_cpus
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, DatasetMeta, Sample, Splits, by_tier, check_counts
from longspan.datasets.clouds.camera import random_pose, seen
from longspan.datasets.clouds.files import ENDINGS, ending
from longspan.datasets.clouds.layouts import Plan, Shape, plan
from longspan.datasets.corpus import Corpus, spread
from longspan.datasets.generation.arrays import write_arrays
from longspan.datasets.generation.shards import Bar, Shard
from longspan.datasets.standins.solids import SOLIDS, make_solid

AHEAD = 64  # models read together
STANDIN_POINTS, STANDIN_DENSE, STANDIN_VIEWS = 1_024, 20_000, {"train": 4, "valid": 1, "test": 1}
INSTRUCTIONS = (
    "is behind the terms of use of ShapeNet and cannot be downloaded by a program; get ShapeNetCompletion (10 GB) from "
    "https://gateway.infinitescript.com/?fileName=ShapeNetCompletion and PCN.json from github.com/yuxumin/PoinTr "
    "(data/PCN), put it beside train, val and test, and run: longspan data import pcn PATH. Any folder of meshes or "
    "clouds can be imported, too."
)
COUNTS = {"train": 28_974, "valid": 800, "test": 1_200}


@dataclass(frozen=True)
class Data:
    """Settings: how many points of a view the network sees, how many points a true cloud has, and how many models.

    None is all. `validation="test"` validates on the test split, as CAB's code did.
    """

    partial: int = 2_048
    points: int | None = None
    validation: Literal["valid", "test"] = "valid"
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        if self.partial < 1 or (self.points is not None and self.points < 1):
            raise UsageError(
                f"A cloud needs at least 1 point, got partial={self.partial} and points={self.points}; give more."
            )
        if self.validation not in ("valid", "test"):
            raise UsageError(f"Checkpoints are selected on 'valid' or 'test', got validation={self.validation!r}.")
        if self.standin and None in (self.train, self.valid, self.test):
            raise UsageError("A stand-in has as many models as asked for; give train, valid and test.")


PRESETS = {
    "point_cloud_completion": by_tier(
        full={"longspan": Data(), "cab-2023": Data(validation="test")},
        smoke=Data(partial=192, points=512, train=120, valid=12, test=24, standin=True),
        other_smoke={"cab-2023": Data(192, 512, "test", train=120, valid=12, test=24, standin=True)},
    )
}


@dataclass(frozen=True, eq=False)
class Clouds:
    """Models of one split: view v of model i is `partial[partial_edges[i, v]:partial_edges[i, v + 1]]`."""

    complete: np.ndarray  # float16 or float32 [count points 3]
    partial: np.ndarray  # the same dtype [.. 3]
    partial_edges: np.ndarray  # int64 [count views+1]
    category: np.ndarray  # int64 [count]
    index: np.ndarray  # int64 [count], the index in the whole split
    ids: list[str]
    categories: list[str]
    training: bool

    def __len__(self) -> int:
        return len(self.complete)

    @property
    def views(self) -> int:
        return self.partial_edges.shape[1] - 1

    def view(self, model: int, number: int = 0) -> np.ndarray:
        """One partial view of a model [n 3]."""
        return self.partial[self.partial_edges[model, number] : self.partial_edges[model, number + 1]]


class Pcn(Corpus):
    meta = DatasetMeta(
        title="PCN",
        source="https://gateway.infinitescript.com/?fileName=ShapeNetCompletion",
        paper="arXiv:1808.00671",
        size="30,974 models of ShapeNet in PCD files, about 10 GB as arrays",
        vocabulary=0,
        classes=0,
        generated=False,
    )
    sizes = COUNTS
    substitutes = ("furniture", "airplanes")

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        points = "all" if data.points is None else data.points
        return f"points{data.partial}to{points}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        raise DataMissing(f"PCN {INSTRUCTIONS}")

    def _absent(self, root: Path | str | None) -> DataMissing:
        return DataMissing(f"PCN is not in {self._whole(root)}; it {INSTRUCTIONS}")

    def convert(self, source: Path, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read PCN as published, a substitute, or a folder of shapes; or an archive of one of these."""
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if source.is_file():
                source = _unpacked(source, Path(scratch))
            found = plan(source)
            arrays, counts, points = _write_names(folder, found.categories), {}, set()
            for split in SPLITS:
                if not found.models[split]:
                    raise CorruptFile(f"{source} has no models to {_PURPOSE[split]}; the split list names none.")
                entries, shape = _write(folder, split, found, Path(scratch))
                arrays |= entries
                counts[split] = shape[0]
                points.add(shape[1])
        if len(points) > 1:
            raise CorruptFile(f"{source}: the splits have clouds of {sorted(points)} points; they should be the same.")
        facts = {"variant": found.variant, "counts": counts, "layout": dict(found.facts)}
        return arrays, facts | {"complete": counts == COUNTS}

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Any]:
        splits = {}
        for name in SPLITS:
            source = data.validation if name == "valid" else name
            splits[name] = _chosen(arrays, source, getattr(data, source), data.points, training=name == "train")
        return splits

    def range_faults(self, arrays: Mapping[str, np.ndarray], manifest: dict) -> Iterator[str]:
        names = arrays.get("categories")
        if names is None or names.ndim != 2 or names.dtype != np.uint8:
            yield "categories should be a list of names"
            return
        for split in SPLITS:
            parts = [arrays.get(f"{split}.{part}") for part in _PARTS]
            if any(part is None for part in parts):
                yield f"{split} should have {', '.join(_PARTS)}"
            else:
                yield from _faults(split, *parts, len(names))  # type: ignore[arg-type]

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few training models by number, in words."""
        clouds = self._shown(data)
        return [Sample(_in_words(clouds, i), i) for i in self._drawn(len(clouds), count, seed)]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """A few training models, a partial view beside the whole, as a PNG file."""
        from matplotlib.figure import Figure

        clouds = self._shown(data)
        rows = self._drawn(len(clouds), count, seed)
        figure = Figure(figsize=(6, 3 * len(rows)), layout="constrained")
        for place, i in enumerate(rows):
            for column, (title, points) in enumerate((("partial", clouds.view(i)), ("complete", clouds.complete[i]))):
                x, y, z = np.asarray(points[:4_096], np.float32).T
                axes = figure.add_subplot(len(rows), 2, 2 * place + column + 1, projection="3d")
                axes.scatter(x, z, y, s=0.6, c=y, cmap="viridis")  # type: ignore[misc]
                axes.set(xlim=(-0.4, 0.4), ylim=(-0.4, 0.4), zlim=(-0.4, 0.4))
                axes.set_axis_off()
                axes.set_title(f"{clouds.categories[clouds.category[i]]} {i}, {title}", fontsize=8)
        figure.savefig(path, format="png", dpi=100)
        return Path(path)

    def _shown(self, data: Data | None) -> Clouds:
        """Training models; nothing is written for stand-ins."""
        data = self._settings(data)
        if not self.invents(data):
            return self.load(data, real=True).train  # type: ignore[return-value]
        with tempfile.TemporaryDirectory() as scratch:
            clouds: Any = self.load(data, root=scratch).train
            whole, views = np.array(clouds.complete), np.array(clouds.partial)
        return Clouds(**vars(clouds) | {"complete": whole, "partial": views})

    # Stand-ins

    def shard_size(self, data: Data) -> int:
        return 1

    def make_shard(self, data: Data, index: int) -> Shard:
        """A synthetic shape as the bytes of its points, labelled with its kind."""
        content = _solid(data.seed, "train", index).complete.reshape(-1).view(np.uint8)
        return Shard(content, np.array([content.size]), np.array([index % len(SOLIDS)], np.uint8))

    def _made(self, data: Data, root: Path | str | None) -> Splits:
        def fill(folder: Path) -> dict:
            counts = self.counts(data)
            models = {split: [partial(_solid, data.seed, split, i) for i in range(counts[split])] for split in SPLITS}
            solids = Plan("standin", list(SOLIDS), models)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                arrays = _write_names(folder, SOLIDS)
                for split in SPLITS:
                    arrays |= _write(folder, split, solids, Path(scratch))[0]
            return self._manifest(data, "standin", counts, {}, arrays)

        return self._made_once(data, root, fill)


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `pcn.load(pcn.Data())`."""
    return Pcn().load(data, root=root)


_PARTS = ("complete", "partial", "edges", "labels", "ids")
_PURPOSE = {"train": "train on", "valid": "validate on", "test": "test on"}


def _solid(seed: int, split: str, number: int) -> Shape:
    kind = SOLIDS[number % len(SOLIDS)]
    rng = np.random.default_rng(derive(seed, "pcn", "standin", split, number))
    dense = make_solid(rng, kind, STANDIN_DENSE)
    views = [seen(dense, random_pose(rng)) for _ in range(STANDIN_VIEWS[split])]
    return Shape(f"{split}-{number}", kind, dense[:STANDIN_POINTS], views)


def _chosen(
    arrays: Mapping[str, np.ndarray], split: str, wanted: int | None, points: int | None, *, training: bool
) -> Clouds:
    """Evenly spaced models of a split, and points of each."""
    complete, flat, edges, labels, ids = (arrays[f"{split}.{part}"] for part in _PARTS)
    rows = spread(len(complete), wanted)
    if len(rows) < len(complete):
        complete = complete[rows]
    if points is not None and points < complete.shape[1]:
        complete = complete[:, spread(complete.shape[1], points)]
    views = (len(edges) - 1) // len(labels)
    names, categories = _texts(ids[rows]), _texts(arrays["categories"])
    kinds = np.asarray(labels)[rows].astype(np.int64)
    ends = np.asarray(edges)[rows[:, None] * views + np.arange(views + 1)]
    return Clouds(complete, flat, ends, kinds, rows, names, categories, training)


def _write(folder: Path, split: str, found: Plan, scratch: Path) -> tuple[dict[str, dict], tuple[int, ...]]:
    """The arrays of a split, and the shape of its complete clouds; points wait in a file until all are there."""
    lengths, labels, ids, points, views = [], [], [], None, None
    with (
        tempfile.TemporaryFile(dir=scratch) as whole,
        tempfile.TemporaryFile(dir=scratch) as partials,
    ):
        for shape in _read(found, split):
            empty = next((number for number, view in enumerate(shape.partial) if not len(view)), None)
            if empty is not None:
                raise CorruptFile(f"View {empty} of {shape.id} shows nothing of it; the shape is too small or damaged.")
            points, views = points or len(shape.complete), views or len(shape.partial)
            if (len(shape.complete), len(shape.partial)) != (points, views):
                raise CorruptFile(
                    f"{shape.category} {shape.id} has {len(shape.complete)} points and {len(shape.partial)} views, the "
                    f"models before it in {split} have {points} and {views}; all should have the same."
                )
            whole.write(shape.complete.astype(found.dtype).tobytes())
            for view in shape.partial:
                partials.write(view.astype(found.dtype).tobytes())
                lengths.append(len(view))
            labels.append(found.categories.index(shape.category))
            ids.append(shape.id)
        edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        size, kinds = (len(labels), int(points or 0), 3), np.array(labels, np.uint8)
        contents = {
            f"{split}.complete": (found.dtype, size, _again(whole, found.dtype)),
            f"{split}.partial": (found.dtype, (int(edges[-1]), 3), _again(partials, found.dtype)),
            f"{split}.edges": (np.int64, edges.shape, [edges]),
            f"{split}.labels": (np.uint8, kinds.shape, [kinds]),
            f"{split}.ids": (np.uint8, (names := _bytes(ids)).shape, [names]),
        }
        return write_arrays(folder, contents), size


def _write_names(folder: Path, categories: Iterable[str]) -> dict[str, dict]:
    names = _bytes(list(categories))
    return write_arrays(folder, {"categories": (np.uint8, names.shape, [names])})


def _bytes(texts: list[str]) -> np.ndarray:
    """Texts as rows of one width, filled with zeros."""
    rows = [text.encode() for text in texts]
    width = max(map(len, rows))
    return np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), np.uint8).reshape(len(rows), width)


def _texts(rows: np.ndarray) -> list[str]:
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in np.asarray(rows)]


def _read(found: Plan, split: str) -> Iterator[Shape]:
    """The models in order, a few at a time, with a progress bar on a terminal."""
    models = found.models[split]
    with Bar(f"pcn {split}", len(models), show=True) as advance, ThreadPoolExecutor(available_cpus()) as pool:
        for first in range(0, len(models), AHEAD):
            for shape in pool.map(lambda read: read(), models[first : first + AHEAD]):
                advance()
                yield shape


def _again(file: Any, dtype: str) -> Iterator[np.ndarray]:
    file.seek(0)
    while content := file.read(1 << 24):
        yield np.frombuffer(content, dtype)


def _unpacked(archive: Path, scratch: Path) -> Path:
    """The shapes and split lists of an archive, in a folder; names that lead outside it are refused."""
    if not is_archive(archive):
        raise DataMissing(f"{archive} is neither a folder of shapes nor an archive of one; check the path.")
    for member in members(archive, lambda name: ending(Path(name)) in (*ENDINGS, ".json", ".tsv")):
        path = scratch / "unpacked" / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as handle:
            while content := member.read(1 << 20):
                handle.write(content)
    return scratch / "unpacked"


def _faults(
    split: str, whole: np.ndarray, flat: np.ndarray, edges: np.ndarray, labels: np.ndarray, ids: np.ndarray, names: int
) -> Iterator[str]:
    count = len(labels)
    if (
        whole.ndim != 3
        or flat.ndim != 2
        or whole.shape[2] != 3
        or flat.shape[1] != 3
        or not {whole.dtype.kind} <= {"f"}
    ):
        yield f"{split}.complete and {split}.partial should be points [models points 3] and [points 3]"
    elif not (len(whole) == len(ids) == count > 0) or ids.ndim != 2 or ids.dtype != np.uint8:
        yield f"{split} should have as many ids and clouds as labels"
    elif edges.ndim != 1 or edges.dtype != np.int64 or len(edges) < count + 1 or (len(edges) - 1) % count:
        yield f"{split}.edges should be those of the same number of views for {count} models"
    elif edges[0] != 0 or edges[-1] != len(flat) or np.any(edges[1:] <= edges[:-1]):
        yield f"{split}.edges should rise from 0 to {len(flat)}"
    elif labels.dtype.kind != "u" or labels.max() >= names:
        yield f"{split}.labels should be 0 .. {names - 1}, found {labels.max()}"
    elif not all(np.isfinite(block).all() for block in (*np.array_split(flat, 16), *np.array_split(whole, 16))):
        yield f"{split} should have finite coordinates"


def _in_words(clouds: Clouds, i: int) -> str:
    sizes = np.diff(clouds.partial_edges[i]).tolist()
    kind = clouds.categories[clouds.category[i]]
    return f"{kind} {clouds.ids[i]}: {clouds.complete.shape[1]} points; views of {', '.join(map(str, sizes))} points"
