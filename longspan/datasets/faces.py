"""Faces at two resolutions: FFHQ for training, CelebA-HQ for the test, each 16 x 16 and 128 x 128 in colour.

An example is one picture in three versions, in bytes: low, high, and the low one enlarged by the bicubic filter, which
is the network's input. They are made by Pillow as in SR3's code (`super_resolution/pairs.py`); which files belong to
which split is in `super_resolution/layouts.py`. Neither dataset can be downloaded without a login or hitting a drive's
quota, so both are imported:

    longspan data import faces FFHQ_FOLDER CELEBA_HQ_FOLDER

At most a tenth of the training pictures, evenly spaced, is for validation: kept out of training, unless `held_out` is
False, as in CAB, which trains on all. On disk: `{train,test}.{low,upsampled,high}.npy`, bytes [count side side 3].
Papers: arXiv:1812.04948, arXiv:1710.10196.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import DataMissing, UsageError
from longspan.core.lock import only_one
from longspan.core.seeding import derive
from longspan.datasets.base import DatasetMeta, Sample, Splits, by_tier, canonical, check_counts
from longspan.datasets.corpus import Corpus, spread
from longspan.datasets.drawing.sheet import contact_sheet
from longspan.datasets.generation.arrays import write_array
from longspan.datasets.generation.shards import Shard, Shards
from longspan.datasets.standins.scenes import draw_scene
from longspan.datasets.super_resolution.layouts import FFHQ, TESTED, Found, check_digest, find
from longspan.datasets.super_resolution.pairs import Pair, pair_of, read_pair

LOW, HIGH, COLOURS = 16, 128, 3
PARTS = Pair._fields
IMPORT_SHARD = 200  # pictures; an interrupted import loses at most this many per thread


@dataclass(frozen=True)
class Data:
    """Settings: the two sides in pixels, how many pictures (None is all), and whether training leaves out validation.

    If not all pictures are taken, they are evenly spaced. `seed` is only for stand-ins.
    """

    low: int = LOW
    high: int = HIGH
    held_out: bool = True
    train: int | None = None
    valid: int | None = 100
    test: int | None = None
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        if not 1 <= self.low < self.high:
            raise UsageError(f"The low side is smaller than the high one, got low={self.low} and high={self.high}.")
        if self.standin and None in (self.train, self.valid, self.test):
            raise UsageError("A stand-in has as many pictures as asked for; give train, valid and test.")


SMOKE = Data(low=16, high=32, train=90, valid=10, test=8, standin=True)
PRESETS = {
    "super_resolution": by_tier(
        full={"longspan": Data(), "cab-2023": Data(held_out=False)},
        lite=Data(valid=16, test=16),
        smoke=SMOKE,
        other_smoke={"cab-2023": Data(16, 32, False, train=100, valid=10, test=8, standin=True)},
    )
    | {("cab-2023", "lite"): Data(held_out=False, test=16)}
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of one split: number i is row `rows[i]` of each array."""

    low: np.ndarray  # uint8 [all low low 3]
    upsampled: np.ndarray  # uint8 [all high high 3]
    high: np.ndarray
    rows: np.ndarray  # int64 [count]

    def __len__(self) -> int:
        return len(self.rows)

    def example(self, i: int) -> Pair:
        return Pair(*(np.asarray(getattr(self, part)[self.rows[i]]) for part in PARTS))

    def resized(self, low: int, high: int) -> "Pictures":
        """The same pictures at other sizes, made in memory from the high ones."""
        from PIL import Image

        pairs = [pair_of(Image.fromarray(np.asarray(self.high[row])), low, high) for row in self.rows]
        low_part, upsampled, high_part = (np.stack(part) for part in zip(*pairs, strict=True))
        return Pictures(low_part, upsampled, high_part, np.arange(len(pairs)))


class Faces(Corpus):
    meta = DatasetMeta(
        title="FFHQ and CelebA-HQ",
        source="https://github.com/NVlabs/ffhq-dataset and kaggle.com/datasets/badasstechie/celebahq-resized-256x256",
        paper="arXiv:1812.04948",
        size="70,000 and 30,000 pictures; 96 GB, or 2 GB as thumbnails, and 0.3 GB; 7 GB as arrays",
        vocabulary=256,
        classes=0,
        generated=False,
    )
    sizes = {"train": FFHQ - 100, "valid": 100, "test": TESTED}
    substitutes = ("faces", "photos", "faces+photos")
    several_paths = True

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"{data.low}to{data.high}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Any:
        raise self._absent(downloads.parent)

    def _absent(self, root: Path | str | None) -> DataMissing:
        return DataMissing(
            f"{self.meta.title} are not in {self._whole(root)}, and no program can download them; get the pictures "
            f"from {self.meta.source} ({self.meta.size}), and run: longspan data import {self.name} FFHQ_FOLDER "
            "CELEBA_HQ_FOLDER (or name a folder of other pictures)."
        )

    def import_from(
        self, path: Path | str | Sequence[Path | str], data: Data | None = None, *, root: Path | str | None = None
    ) -> Splits:
        """Convert the pictures in one folder or several; they replace what was imported before."""
        data = self._settings(data)
        paths = [Path(path)] if isinstance(path, (str, Path)) else [Path(one) for one in path]
        for one in paths:
            if not one.exists():
                raise DataMissing(f"There is no folder {one} to import {self.meta.title} from; check the path.")
        self._take(paths, root)
        return self.load(data, root=root, real=True)

    def convert(self, source: Sequence[Path], folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read FFHQ and CelebA-HQ, a known substitute, or any folder of pictures; an interrupted call is resumed."""
        found = find([Path(path).resolve() for path in source])
        files = (*found.train, *found.test)
        work = folder.parent / f"import-{_identity(files)}.work"
        work.mkdir(parents=True, exist_ok=True)
        with only_one(work / "lock", f"{self.name} in {work}"):
            shards = Shards(work, lambda index: _read_shard(found, files, index))
            shards.make_all(-(-len(files) // IMPORT_SHARD), title=f"{self.name}: {len(files):,} pictures")
            arrays = _write(folder, shards, {"train": len(found.train), "test": len(found.test)}, LOW, HIGH)
            shutil.rmtree(work, ignore_errors=True)
        return arrays, {
            "variant": found.variant,
            "counts": {"train": len(found.train), "test": len(found.test)},
            "source_size": _size_in_words(found.train[0]),
            "test_pictures": [file.stem for file in found.test],
            "complete": found.variant == "official",
        }

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Any]:
        train, test = (_whole_split(arrays, split) for split in ("train", "test"))
        count = len(train)
        valid = spread(count, min(count if data.valid is None else data.valid, max(1, count // 10)))
        kept = np.setdiff1d(np.arange(count), valid) if data.held_out else np.arange(count)
        rows = {"train": kept[spread(len(kept), data.train)], "valid": valid, "test": spread(len(test), data.test)}
        fits = (data.low, data.high) == (train.low.shape[1], train.high.shape[1])
        splits = {}
        for name, chosen in rows.items():
            split = test if name == "test" else train
            split = Pictures(split.low, split.upsampled, split.high, chosen)
            splits[name] = split if fits else split.resized(data.low, data.high)
        return splits

    def range_faults(self, arrays: Mapping[str, np.ndarray], manifest: dict) -> Iterator[str]:
        for split in ("train", "test"):
            shapes = [arrays[name].shape if (name := f"{split}.{part}") in arrays else () for part in PARTS]
            count, sides = shapes[2][:1], [shape[1:2] for shape in shapes]
            if (*count,) != (manifest["counts"].get(split),) or any(
                shape != (*count, *side, *side, COLOURS) for shape, side in zip(shapes, sides, strict=True)
            ):
                yield f"{split} should have low, upsampled and high pictures in colour, found {shapes}"

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """A few random training pictures: low, enlarged and high side by side."""
        data = self._settings(data)
        with tempfile.TemporaryDirectory() as scratch:
            pictures = self.load(data, root=scratch if self.invents(data) else None).train
            rng = np.random.Generator(np.random.PCG64(derive(seed, self.name, "samples")))
            rows = rng.choice(len(pictures), min(count, len(pictures)), replace=False)
            return [Sample(_side_by_side(pictures.example(row)), int(row)) for row in rows]  # type: ignore[attr-defined]

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        samples = self.samples(data, count, seed)
        captions = [f"{sample.label}: low, enlarged, high" for sample in samples]
        return contact_sheet([np.asarray(sample.content) for sample in samples], captions, Path(path), columns=2)

    # Stand-ins

    def shard_size(self, data: Data) -> int:
        return IMPORT_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "faces", "standin", index)))
        return _shard([_made_up(rng, data) for _ in range(IMPORT_SHARD)])

    def _made(self, data: Data, root: Path | str | None) -> Splits:
        def fill(folder: Path) -> dict:
            held = int(data.valid or 0) if data.held_out else 0
            counts = {"train": int(data.train or 0) + held, "test": int(data.test or 0)}
            with tempfile.TemporaryDirectory() as scratch:
                shards = Shards(Path(scratch), lambda index: self.make_shard(data, index))
                arrays = _write(folder, shards, counts, data.low, data.high)
            return self._manifest(data, "standin", counts, {}, arrays)

        return self._made_once(data, root, fill)


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `faces.load(faces.Data(test=16))`."""
    return Faces().load(data, root=root)


def nearest(low: np.ndarray, side: int) -> np.ndarray:
    """Pictures [... low low 3] enlarged without any filter."""
    place = np.arange(side) * low.shape[-2] // side
    return low[..., place[:, None], place, :]


def _whole_split(arrays: Mapping[str, np.ndarray], split: str) -> Pictures:
    low, upsampled, high = (arrays[f"{split}.{part}"] for part in PARTS)
    return Pictures(low, upsampled, high, np.arange(len(high)))


def _identity(files: Sequence[Path]) -> str:
    """Identifies an import, which is resumed if the files are the same and unchanged."""
    facts = [[str(file), (stat := file.stat()).st_size, stat.st_mtime_ns] for file in files if file.exists()]
    return hashlib.sha256(canonical(facts).encode()).hexdigest()[:16]


def _read_shard(found: Found, files: Sequence[Path], index: int) -> Shard:
    pairs = []
    for file in files[index * IMPORT_SHARD : (index + 1) * IMPORT_SHARD]:
        check_digest(file, found)
        pairs.append(read_pair(file, LOW, HIGH))
    return _shard(pairs)


def _shard(pairs: Sequence[Pair]) -> Shard:
    """The parts of each pair one after another."""
    return Shard.of_texts([b"".join(part.tobytes() for part in pair) for pair in pairs])


def _write(folder: Path, shards: Shards, counts: Mapping[str, int], low: int, high: int) -> dict[str, dict]:
    """The arrays of both splits, whose pictures follow one another in the shards."""
    arrays, first = {}, 0
    edges = np.cumsum([0, low * low, high * high, high * high]) * COLOURS
    for split, count in counts.items():
        for place, (part, side) in enumerate(zip(PARTS, (low, high, high), strict=True)):
            pieces = (row[edges[place] : edges[place + 1]] for row in _rows(shards, first, first + count))
            shape = (count, side, side, COLOURS)
            arrays[f"{split}.{part}.npy"] = write_array(folder / f"{split}.{part}.npy", np.uint8, shape, pieces)
        first += count
    return arrays


def _rows(shards: Shards, first: int, stop: int) -> Iterator[np.ndarray]:
    for index in range(first // IMPORT_SHARD, -(-stop // IMPORT_SHARD)):
        rows, start = shards.read(index).rows(), index * IMPORT_SHARD
        yield from rows[max(0, first - start) : max(0, stop - start)]


def _made_up(rng: np.random.Generator, data: Data) -> Pair:
    from PIL import Image

    return pair_of(Image.fromarray(draw_scene(rng, data.high)), data.low, data.high)


def _size_in_words(file: Path) -> str:
    """Which resolution the pictures had: FFHQ's thumbnails were made with a different filter."""
    from PIL import Image

    with Image.open(file) as image:
        return f"{image.size[0]} x {image.size[1]}"


def _side_by_side(pair: Pair) -> np.ndarray:
    return np.concatenate([nearest(pair.low, len(pair.high)), pair.upsampled, pair.high], axis=1)
