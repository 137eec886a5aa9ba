"""ListOps: nested prefix expressions over digits, each with the one digit it evaluates to (Long Range Arena).

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

Operators MIN, MAX, MED (median, truncated to an integer) and SM (sum modulo 10), drawn uniformly. A node is an operator
with probability 1/4, with 2 .. max_args arguments; the root has depth 1 and nodes at max_depth are digits. A tree is
kept when longer_than < length < shorter_than, where an operator counts 2 (its name and its closing bracket); no tree
appears twice. Rules as in LRA's released generator; departs from it in: every draw is seeded, ids are sorted.
"""

import csv
import io
import lzma
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from longspan.core.archive import Member, is_archive, members, stream
from longspan.core.download import Source, digests, fetch
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.remote import ask
from longspan.core.seeding import derive
from longspan.datasets import lra_release
from longspan.datasets.base import (
    SPLITS,
    Dataset,
    DatasetMeta,
    Sample,
    Splits,
    by_tier,
    check_counts,
    count_labels,
    data_root,
)
from longspan.datasets.generation.arrays import write_split
from longspan.datasets.generation.compiled import compiled_once
from longspan.datasets.generation.shards import Shard

SYMBOLS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MAX", "[MED", "[MIN", "[SM", "]")  # sorted
PAD = 0
UNKNOWN = len(SYMBOLS) + 1
VOCAB = len(SYMBOLS) + 2  # 15 symbols, padding, unknown
CLASSES = 10

DIGIT = 1  # the id of "0"; digit v has id DIGIT + v
MAX, MED, MIN, SM, CLOSE = 11, 12, 13, 14, 15
OPERATOR_PROBABILITY = 0.25
SHARD = 1_000

FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
FOLDER = "listops-1000"
PUBLISHED = {"train": 96_000, "valid": 2_000, "test": 2_000}
Rows = list[tuple[np.ndarray, int]]


@dataclass(frozen=True)
class Data:
    """Settings; the defaults are those of the Long Range Arena."""

    train: int = 96_000
    valid: int = 2_000
    test: int = 2_000
    longer_than: int = 500
    shorter_than: int = 2_000
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self):
        check_counts(self)
        if self.shorter_than - self.longer_than < 2 or self.longer_than < 0:
            raise UsageError(
                f"No length lies strictly between longer_than={self.longer_than} and shorter_than={self.shorter_than}; "
                "leave room for at least one length."
            )
        if self.max_depth < 2 or self.max_args < 2:
            raise UsageError(
                f"An expression needs max_depth and max_args of at least 2, got {self.max_depth} and {self.max_args}."
            )


SMOKE = Data(train=20_000, valid=500, test=2_000, longer_than=50, shorter_than=128, max_depth=5, max_args=8)
PRESETS = {
    "listops": by_tier(
        full=dict.fromkeys(("longspan", "lra-paper", "lra-released", "strong"), Data()),
        smoke=SMOKE,
        other_smoke={"strong": SMOKE},
    )
}


class ListOps(Dataset):
    meta = DatasetMeta(
        title="ListOps",
        source="https://storage.googleapis.com/long-range-arena/lra_release.gz (listops-1000/), or generated here",
        paper="arXiv:2011.04006",
        size="100,000 expressions, about 105 MB as arrays",
        vocabulary=VOCAB,
        classes=CLASSES,
        generated=True,
    )

    def key(self, data: Data) -> str:
        return (
            f"length{data.longer_than}-{data.shorter_than}-depth{data.max_depth}-args{data.max_args}"
            f"-n{data.train}-{data.valid}-{data.test}-seed{data.seed}"
        )

    def shard_size(self, data: Data) -> int:
        return SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        return generate(data, SHARD, derive(data.seed, "listops", index))

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        shard = generate(self._settings(data), count, derive(seed, "listops", "samples"))
        return [Sample(decode(row), int(label)) for row, label in zip(shard.rows(), shard.labels, strict=True)]

    def import_from(self, path: Path | str, data: Data | None = None, *, root: Path | str | None = None) -> Splits:
        """Read `basic_{train,val,test}.tsv` (or `.tsv.xz`) from a folder, from `listops-1000/` in it, or an archive."""
        data = cast(Data, self._settings(data))
        path = Path(path)
        if is_archive(path) and not path.name.endswith(".tsv.xz"):
            listing = lra_release.Listing()
            read = _read_members(listing.through(members(path, FILES.values())), data)
            return self._take(data, root, read, "imported", file=path.name, members=listing.facts())
        return self._take(data, root, _read_files(_official_files(path), data), "imported")

    def prepare_official(
        self, data: Data | None = None, *, root: Path | str | None = None, progress: bool = True
    ) -> Splits:
        """Download the three tables; if they are not available, read them from the archive of 8.2 GB.

        Nothing of the archive is kept, and reading stops at the third table.
        """
        data = cast(Data, self._settings(data))
        if (ready := self._official(data, root)) is not None:
            return ready
        if (asked := {split: getattr(data, split) for split in SPLITS}) != PUBLISHED:
            raise UsageError(
                f"The release has {_counts(PUBLISHED)} expressions, the settings ask for {_counts(asked)}; use those "
                "of the full tier (--tier full), or let them be generated without --official."
            )
        try:
            return self._take_tables(data, root, progress)
        except DataMissing as error:
            print(f"{error}. Now trying the archive of all tasks.", file=sys.stderr, flush=True)
        listing, remote = lra_release.Listing(), ask(lra_release.archive(self.name))
        read = _read_members(listing.through(stream(remote, _NESTED, progress=progress)), data)
        return self._take(data, root, read, "official", source=remote.facts(), members=listing.facts())

    def _take_tables(self, data: Data, root: Path | str | None, progress: bool) -> Splits:
        downloads = data_root(root) / "downloads" / FOLDER
        files = {split: fetch(source, downloads, progress=progress) for split, source in _TABLES.items()}
        told = {_TABLES[split].url: digests(file) for split, file in files.items()}
        return self._take(data, root, _read_files(files, data), "official", source=told)

    def _take(self, data: Data, root: Path | str | None, read: dict[str, Rows], variant: str, **facts: Any) -> Splits:
        """Write rows that were read from somewhere."""
        found = {split: len(read[split]) for split in SPLITS}
        asked = {split: getattr(data, split) for split in SPLITS}
        if found != asked:
            raise UsageError(
                f"The settings ask for {_counts(asked)} expressions, there are {_counts(found)}; "
                "import them with settings of these counts."
            )

        def fill(folder: Path) -> dict:
            arrays, label_counts = {}, {}
            for split in SPLITS:
                lengths = np.array([len(ids) for ids, _ in read[split]], np.int64)
                labels = np.array([label for _, label in read[split]], np.uint8)
                arrays |= write_split(folder, split, lengths, labels, (ids for ids, _ in read[split]))
                label_counts[split] = count_labels(labels)
            return self._manifest(data, variant, found, label_counts, arrays, **facts)

        self._publish(self.folder(data, root, imported=True), fill, replace=True)
        return self.load(data, root=root, variant=variant)


_NESTED = [f"{FOLDER}/{name}" for name in FILES.values()]
_TABLES = {
    split: Source(
        f"{lra_release.BUCKET}/lra_release/{FOLDER}/{name}", name, dataset="listops", licence=lra_release.LICENCE
    )
    for split, name in FILES.items()
}


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits, generated at the first call: `listops.load(listops.Data())`."""
    return ListOps().load(data, root=root)


def encode(text: str) -> np.ndarray:
    """Ids of an expression, with or without the official parentheses; `X` means `]`, as in LRA's tokenizer.

    >>> encode("( ( ( [MAX 2 ) 3 ) ] )").tolist()
    [11, 3, 4, 15]
    """
    words = text.replace("(", " ").replace(")", " ").split()
    return np.array([_ID.get(word, UNKNOWN) for word in words], np.uint8)


def decode(ids: Iterable[int]) -> str:
    """The expression without parentheses and padding.

    >>> decode([11, 3, 4, 15, 0, 0])
    '[MAX 2 3 ]'
    """
    return " ".join(_WORD[int(id)] for id in ids if id != PAD)


def evaluate(ids: Iterable[int]) -> int:
    """The digit an expression evaluates to, read from left to right with a stack: the reference for all labels.

    >>> evaluate(encode("[MED 1 4 ]"))
    2
    """
    waiting: list[list[int]] = [[]]
    operators: list[str] = []
    for word in decode(ids).split():
        if word.startswith("["):
            operators.append(word)
            waiting.append([])
        elif word == "]" and operators and waiting[-1]:
            waiting[-2].append(_APPLY[operators.pop()](waiting.pop()))
        elif word.isdigit():
            waiting[-1].append(int(word))
        else:
            raise ValueError(f"{decode(ids)!r} is not an expression: {word!r} stands where it cannot.")
    if operators or len(waiting[0]) != 1:
        raise ValueError(f"{decode(ids)!r} is not one whole expression; check its brackets.")
    return waiting[0][0]


_ID = {word: id for id, word in enumerate(SYMBOLS, start=1)} | {"X": CLOSE}
_WORD = dict(enumerate(SYMBOLS, start=1)) | {UNKNOWN: "?"}
_APPLY = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def generate(data: Data, count: int, seed: int, *, interpreted: bool = False) -> Shard:
    """`count` accepted expressions from one random stream; `interpreted` runs the same function uncompiled."""
    grow = _grow if interpreted else compiled_once(_grow)
    rng = np.random.Generator(np.random.PCG64(seed))
    tokens = np.empty(count * (data.shorter_than - 1) + 1, np.uint8)  # a tree is abandoned one token too late
    lengths, labels = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    attempts = 1_000_000 + 20_000 * count
    bounds = (data.longer_than, data.shorter_than, data.max_depth, data.max_args)
    made = grow(rng, tokens, lengths, labels, attempts, *bounds)
    if made < count:
        raise UsageError(
            f"Of {attempts:,} random expressions only {made} had a length between {data.longer_than} and "
            f"{data.shorter_than} at max_depth={data.max_depth}, max_args={data.max_args}; widen the bounds."
        )
    return Shard(tokens[: lengths.sum()].copy(), lengths, labels)


def _grow(rng, tokens, lengths, labels, attempts, longer_than, shorter_than, max_depth, max_args):
    """Fill the arrays with accepted trees; returns how many. Trees are written depth first, as they are drawn.

    One frame per depth: how many arguments are still to come, and a table of how often each digit was an argument,
    which is all that any of the four operators needs.
    """
    remaining = np.zeros(max_depth + 1, np.int64)
    operator = np.zeros(max_depth + 1, np.int64)
    digits = np.zeros((max_depth + 1, 10), np.int64)
    made, base = 0, 0
    for _ in range(attempts):
        if made == len(lengths):
            break
        depth, length, value = 0, 0, 0
        remaining[0] = 1  # frame 0 waits for the root, which has depth 1
        while True:
            if remaining[depth] > 0:
                remaining[depth] -= 1
                if depth + 1 < max_depth and rng.random() <= OPERATOR_PROBABILITY:
                    depth += 1
                    operator[depth] = MAX + int(rng.random() * 4)
                    remaining[depth] = 2 + int(rng.random() * (max_args - 1))
                    digits[depth, :] = 0
                    tokens[base + length] = operator[depth]
                else:
                    value = int(rng.random() * 10)
                    digits[depth, value] += 1
                    tokens[base + length] = DIGIT + value
            else:
                if depth == 0:
                    break
                count, total, low, high = 0, 0, -1, -1
                for digit in range(10):
                    if digits[depth, digit] > 0:
                        low = digit if low < 0 else low
                        high = digit
                        count += digits[depth, digit]
                        total += digit * digits[depth, digit]
                if operator[depth] == MAX:
                    value = high
                elif operator[depth] == MIN:
                    value = low
                elif operator[depth] == SM:
                    value = total % 10
                else:  # the two middle ranks (one and the same when count is odd), averaged and truncated
                    passed, middle = 0, 0
                    for digit in range(10):
                        for _ in range(digits[depth, digit]):
                            if passed == (count - 1) // 2:
                                middle += digit
                            if passed == count // 2:
                                middle += digit
                            passed += 1
                    value = middle // 2
                depth -= 1
                digits[depth, value] += 1
                tokens[base + length] = CLOSE
            length += 1
            if length >= shorter_than:
                break
        if longer_than < length < shorter_than:
            lengths[made] = length
            labels[made] = value
            made += 1
            base += length
    return made


def value_of(ids: np.ndarray) -> int:
    """The result of `evaluate`, or -1 if it raises; compiled, since the official files have 100,000 rows."""
    return int(compiled_once(_value)(np.asarray(ids, np.uint8)))


def _value(ids):
    """A stack of open operators, each with a count of every digit among its arguments."""
    operator = np.zeros(len(ids) + 1, np.int64)
    seen = np.zeros((len(ids) + 1, 10), np.int64)
    depth, result = 0, -1
    for id in ids:
        if MAX <= id <= SM:
            depth += 1
            operator[depth] = id
            seen[depth, :] = 0
            continue
        if DIGIT <= id < DIGIT + 10:
            value = int(id) - DIGIT
        elif id == CLOSE and depth > 0 and seen[depth].sum() > 0:
            arguments = np.repeat(np.arange(10), seen[depth])  # sorted
            count = len(arguments)
            if operator[depth] == MAX:
                value = arguments[count - 1]
            elif operator[depth] == MIN:
                value = arguments[0]
            elif operator[depth] == SM:
                value = arguments.sum() % 10
            else:
                value = (arguments[(count - 1) // 2] + arguments[count // 2]) // 2
            depth -= 1
        else:
            return -1
        if depth > 0:
            seen[depth, value] += 1
        elif result >= 0:
            return -1  # a second expression after the first
        else:
            result = value
    return result if depth == 0 else -1


def _official_files(path: Path) -> dict[str, Path]:
    folder = path.parent if path.name.removesuffix(".xz") in FILES.values() else path
    for place in lra_release.places(FOLDER):
        for ending in ("", ".xz"):
            files = {split: folder / place / f"{name}{ending}" for split, name in FILES.items()}
            if all(file.is_file() for file in files.values()):
                return files
    raise DataMissing(
        f"{path} is no copy of ListOps: it does not contain {', '.join(FILES.values())}; "
        f"unpack them from {ListOps.meta.source} and name their folder, or name the archive itself."
    )


def _read_files(files: dict[str, Path], data: Data) -> dict[str, Rows]:
    read = {}
    for split, file in files.items():
        with _open_text(file) as handle:
            read[split] = list(_read_rows(handle, str(file), data))
    return read


def _read_members(found: Iterable[Member], data: Data) -> dict[str, Rows]:
    read = {}
    splits = {name: split for split, name in FILES.items()}
    for member in found:
        with io.TextIOWrapper(io.BufferedReader(member), encoding="utf-8", newline="") as handle:
            name = member.name.rpartition("/")[2]
            read[splits[name]] = list(_read_rows(handle, f"{member.name} in {member.where}", data))
    return read


def _read_rows(handle: IO[str], where: str, data: Data) -> Iterator[tuple[np.ndarray, int]]:
    """Ids and label of every row, all of them checked: words, brackets, length and value."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
    number = 1
    try:
        header = next(rows, None)
        if header != ["Source", "Target"]:
            raise CorruptFile(f"{where} should begin with the columns Source and Target, found {header}; get it again.")
        for number, row in enumerate(rows, start=2):
            if len(row) != 2 or row[1] not in SYMBOLS[:10]:
                raise CorruptFile(f"{where}, line {number}: expected an expression and a digit, found {row!r:.80}.")
            ids, target = encode(row[0]), int(row[1])
            if len(ids) == 0 or UNKNOWN in ids:
                raise CorruptFile(f"{where}, line {number}: the expression has words that ListOps does not know.")
            if not data.longer_than < len(ids) < data.shorter_than:
                bounds = f"{data.longer_than + 1} .. {data.shorter_than - 1}"
                raise CorruptFile(f"{where}, line {number}: the length should be in {bounds}, found {len(ids)}.")
            if (value := value_of(ids)) != target:
                found = "it is not one whole expression" if value < 0 else f"it evaluates to {value}"
                raise CorruptFile(f"{where}, line {number}: the expression should give {target}, but {found}.")
            yield ids, target
    except (UnicodeDecodeError, csv.Error, lzma.LZMAError, EOFError) as error:
        raise CorruptFile(f"{where}, after line {number}: {error}; get the file again.") from error


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _counts(counts: dict[str, int]) -> str:
    return " / ".join(str(counts[split]) for split in SPLITS)
