"""IMDb: is a film review positive or negative? 25,000 texts for training and 25,000 for the test, as bytes (ACL 2011).

An example is the unprocessed UTF-8 text, one token per byte, `<br />` included; label 1 is a positive review. The
archive has no validation split: `held-out` takes the published tenth of the training texts (negatives by number, then
positives by number, equally many of each), `test` validates on the test texts as the Long Range Arena does. Departs
from it in: nothing.
"""

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from longspan.core.archive import members
from longspan.core.download import fetch
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.lines import lines
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets.base import LATER, DatasetMeta, Sample, Split, Splits, by_tier, check_counts, count_labels
from longspan.datasets.characters import Tokens, in_characters
from longspan.datasets.corpus import Corpus, evenly
from longspan.datasets.generation.arrays import hash_file, write_split
from longspan.datasets.generation.shards import Shard
from longspan.datasets.splits import published, tenth_of_each_class
from longspan.datasets.standins.reviews import make_review

VOCAB = 256
CLASSES = 2
ARCHIVE = Source(
    "http://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "aclImdb_v1.tar.gz",
    size=84_125_825,
    md5="7c2ac02c03563afcf9b574c7e56c153a",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    dataset="imdb",
    licence="no licence is stated; for research, cite Maas et al., ACL 2011.",
)
FOLDERS = ("neg", "pos")  # by label
PER_CLASS = 12_500
TEXT_BYTES = {("train", 0): 16_289_992, ("train", 1): 16_842_831, ("test", 0): 16_067_328, ("test", 1): 16_283_357}
STANDIN_SHARD = 500
LEAST = 15  # occurrences in the training texts that give a character an id


@dataclass(frozen=True)
class Data:
    """Settings: how many tokens of a text are read, how many texts are taken (None is all), and the validation split.

    Tokens are bytes, or characters that occur at least 15 times in the training texts.

    `seed` is only for stand-ins; the held-out texts are always the same.
    """

    length: int = 4_000
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    validation: Literal["held-out", "test"] = "held-out"
    seed: int = 0
    standin: bool = False
    tokens: Tokens = field(default="bytes", metadata=LATER)

    def __post_init__(self):
        check_counts(self)
        if self.length < 1:
            raise UsageError(f"A review is cut to at least 1 token, got length={self.length}.")
        if self.validation not in get_args(Data.__annotations__["validation"]):
            raise UsageError(f"IMDb validates on 'held-out' or 'test', got validation={self.validation!r}; pick one.")


def _text(length: int, released: int | None = None) -> dict[tuple[str, str], Data]:
    """Reviews truncated to `length` bytes; the LRA protocols validate on the test texts."""
    full = {
        "longspan": Data(length=length),
        "lra-paper": Data(length=length, validation="test"),
        "lra-released": Data(length=released or length, validation="test"),
    }
    return by_tier(full, smoke=Data(length=256, train=2_000, valid=200, test=1_000, standin=True))


STRONG = dict.fromkeys(
    (("strong", "lite"), ("strong", "full")), Data(length=4_095, tokens="characters")
)  # 4,096 with the end token
STRONG["strong", "smoke"] = Data(length=255, train=2_000, valid=200, test=1_000, tokens="characters", standin=True)
PRESETS = {
    "text": _text(4_000, released=1_000) | STRONG,
    "text_1k": _text(1_000),
    "text_2k": _text(2_000),
    "text_3k": _text(3_000),
    "text_4k": _text(4_000),
}


class Review(NamedTuple):
    label: int
    number: int | None  # in the file name; unknown in tables without it
    text: bytes


class Imdb(Corpus):
    meta = DatasetMeta(
        title="IMDb reviews",
        source=ARCHIVE.url,
        paper="https://aclanthology.org/P11-1015",
        size="50,000 reviews, an archive of 84 MB, 66 MB as arrays",
        vocabulary=VOCAB,
        classes=CLASSES,
        generated=False,
    )
    sizes = {"train": 22_500, "valid": 2_500, "test": 25_000}

    def counts(self, data: Data) -> dict[str, int]:
        whole = {"train": 25_000, "valid": 25_000} if data.validation == "test" else {}
        return {
            split: size if (asked := getattr(data, split)) is None else asked
            for split, size in (self.sizes | whole).items()
        }

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"length{data.length}-{data.validation}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        return fetch(ARCHIVE, downloads, progress=progress)

    def convert(self, source: Path, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read the archive, its unpacked folder, or `train` and `test` as TSV, TSV.xz, CSV or Parquet tables."""
        reviews, official = _read(source)
        arrays, counts, label_counts, text_bytes = {}, {}, {}, {}
        for split, rows in reviews.items():
            ordered = _in_order(rows, f"{source}, {split}")
            lengths = np.array([len(review.text) for review in ordered], np.int64)
            labels = np.array([review.label for review in ordered], np.uint8)
            texts = (np.frombuffer(review.text, np.uint8) for review in ordered)
            arrays |= write_split(folder, split, lengths, labels, texts)
            counts[split], label_counts[split] = len(ordered), count_labels(labels)
            text_bytes |= {(split, label): int(lengths[labels == label].sum()) for label in range(CLASSES)}
        complete = text_bytes == TEXT_BYTES and all(
            found == {str(label): PER_CLASS for label in range(CLASSES)} for found in label_counts.values()
        )
        if official and not complete:
            raise CorruptFile(f"{source} has the published hash but not the published texts; this is a bug here.")
        variant = "official" if official else "imported"
        return arrays, {"variant": variant, "counts": counts, "label_counts": label_counts, "complete": complete}

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Split]:
        train, test = (
            Split.of_rows(*(arrays[f"{split}.{part}"] for part in ("tokens", "starts", "labels")))
            for split in ("train", "test")
        )
        every = np.arange(len(train))
        if data.validation == "test":
            parts = {"train": (train, every), "valid": (test, np.arange(len(test)))}
        else:
            held = _held_out(np.asarray(train.labels))
            parts = {"train": (train, np.setdiff1d(every, held)), "valid": (train, held)}
        parts["test"] = (test, np.arange(len(test)))
        return {
            name: split.rows(evenly(split.labels, rows, getattr(data, name))) for name, (split, rows) in parts.items()
        }

    def read_as(self, splits: dict[str, Split], data: Data) -> dict[str, Split]:
        if data.tokens == "characters":
            return in_characters(splits, data.length, LEAST)
        return {name: split.cut(data.length) for name, split in splits.items()}

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        return super().samples(replace(cast(Data, self._settings(data)), tokens="bytes"), count, seed)

    def shard_size(self, data: Data) -> int:
        return STANDIN_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "imdb", "standin", index)))
        made = [make_review(rng, data.length) for _ in range(STANDIN_SHARD)]
        return Shard.of_texts(*zip(*made, strict=True))


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `imdb.load(imdb.Data(length=1000))`."""
    return Imdb().load(data, root=root)


def _held_out(labels: np.ndarray) -> np.ndarray:
    """The published rows for the whole corpus; the same rule for a part of it."""
    if np.array_equal(labels, np.repeat(np.arange(CLASSES), PER_CLASS)):
        return published("imdb-longspan")["valid"]
    return tenth_of_each_class(labels, "imdb")


def _in_order(reviews: list[Review], where: str) -> list[Review]:
    """Negatives by number, then positives by number; reviews without numbers keep their order within a class."""
    keys = [(review.label, -1 if review.number is None else review.number) for review in reviews]
    numbered = [key for key in keys if key[1] >= 0]
    if len(set(numbered)) != len(numbered):
        raise CorruptFile(f"{where}: two reviews of one class have the same number; get the files again.")
    if not reviews:
        raise CorruptFile(f"{where}: there are no reviews; get the files again.")
    return [reviews[place] for place in sorted(range(len(keys)), key=keys.__getitem__)]


# Layouts


def _read(source: Path) -> tuple[dict[str, list[Review]], bool]:
    """The reviews of both splits, and whether they come from the archive with the published hash."""
    if source.is_file():
        return _read_archive(source), hash_file(source) == ARCHIVE.sha256
    for folder in (source, source / "aclImdb"):
        if all((folder / split / name).is_dir() for split in ("train", "test") for name in FOLDERS):
            return {split: list(_read_folder(folder / split)) for split in ("train", "test")}, False
    if (source / ARCHIVE.filename).is_file():
        return _read(source / ARCHIVE.filename)
    for pattern, reader in _TABLES.items():
        files = {split: sorted(source.glob(pattern.format(split=split))) for split in ("train", "test")}
        if all(files.values()):
            return {split: [row for one in some for row in reader(one)] for split, some in files.items()}, False
    raise DataMissing(
        f"{source} is no copy of IMDb: it has neither {ARCHIVE.filename}, nor train/ and test/ "
        f"with neg/ and pos/, nor train and test tables (.tsv, .tsv.xz, .csv, .parquet); get it from {ARCHIVE.url}."
    )


_NAME = re.compile(r"(?:.*/)?aclImdb/(train|test)/(neg|pos)/(\d{1,9})_\d+\.txt", re.ASCII)


def _read_archive(path: Path) -> dict[str, list[Review]]:
    reviews: dict[str, list[Review]] = {"train": [], "test": []}
    for member in members(path, lambda name: _NAME.fullmatch(name) is not None):
        split, label, number = cast(re.Match, _NAME.fullmatch(member.name)).groups()
        text = _checked(member.read(), f"{path}, {member.name}")
        reviews[split].append(Review(FOLDERS.index(label), int(number), text))
    return reviews


def _read_folder(folder: Path) -> Iterator[Review]:
    for label, name in enumerate(FOLDERS):
        for file in sorted((folder / name).glob("*.txt")):
            number = file.stem.partition("_")[0]
            if not re.fullmatch("[0-9]{1,9}", number):
                raise CorruptFile(f"{file} should be called <number>_<rating>.txt; unpack the archive again.")
            yield Review(label, int(number), _checked(file.read_bytes(), str(file)))


def _read_tsv(path: Path) -> Iterator[Review]:
    """Lines of `label number rating text`. Texts hold tabs and odd line separators, so a line ends at \\n alone."""
    for line, where in lines(path):
        label, number, rating, text = (line.split(b"\t", 3) + [b""] * 3)[:4]
        if label not in (b"0", b"1") or not re.fullmatch(rb"[0-9]{1,9}", number) or not rating.isdigit() or not text:
            raise CorruptFile(f"{where}: expected label 0 or 1, number, rating and text, found {line!r:.80}.")
        yield Review(int(label), int(number), _checked(text, where))


def _read_csv(path: Path) -> Iterator[Review]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle)
        try:
            for row in rows:
                yield _from_table(row, f"{path}, line {rows.line_num}")
        except (csv.Error, UnicodeDecodeError) as error:
            raise CorruptFile(f"{path}, after line {rows.line_num}: not a CSV table in UTF-8 ({error}).") from error


def _read_parquet(path: Path) -> Iterator[Review]:
    try:
        import pyarrow  # type: ignore[import-not-found]
        from pyarrow import parquet  # type: ignore[import-not-found]
    except ImportError as error:
        raise UsageError(f"Reading {path} needs pyarrow, which is not installed; install it or use CSV.") from error
    try:
        table = parquet.read_table(path, columns=["text", "label"]).to_pylist()
    except pyarrow.ArrowException as error:
        raise CorruptFile(f"{path} is not a Parquet table with columns text and label ({error}).") from error
    for number, row in enumerate(table, start=1):
        yield _from_table(row, f"{path}, row {number}")


_TABLES: dict[str, Callable[[Path], Iterable[Review]]] = {
    "{split}.tsv": _read_tsv,
    "{split}.tsv.xz": _read_tsv,
    "{split}.csv": _read_csv,
    "{split}*.parquet": _read_parquet,
}
_LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1, "negative": 0, "positive": 1}


def _from_table(row: Mapping[str, Any], where: str) -> Review:
    label, text = _LABELS.get(str(row.get("label")).lower()), row.get("text")
    if label is None or not isinstance(text, str):
        raise CorruptFile(
            f"{where}: expected the columns text and label (0 or 1, neg or pos), found {dict(row)!r:.80}."
        )
    return Review(label, None, _checked(text.encode(), where))


def _checked(text: bytes, where: str) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{where}: the review is not UTF-8 ({error.reason} at byte {error.start}).") from error
    if not text:
        raise CorruptFile(f"{where}: the review is empty.")
    return text
