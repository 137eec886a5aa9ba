"""ListOps: nested prefix expressions over digits, each with the one digit it evaluates to (Long Range Arena).

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

Operators MIN, MAX, MED (median, cut to an integer) and SM (sum modulo 10), drawn uniformly. A node is an operator
with probability 1/4, with 2 .. max_args arguments; the root has depth 1 and nodes at max_depth are digits. A tree is
kept when longer_than < length < shorter_than, where an operator counts 2 (its name and its closing bracket); no tree
appears twice. Rules as in LRA's released generator; departs from it in: every draw is seeded, ids are sorted.
"""

import csv
import lzma
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.seeding import derive
from longspan.datasets.base import SPLITS, Dataset, DatasetMeta, Sample, Splits, check_counts, count_labels
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
        """Read `basic_{train,val,test}.tsv` (or `.tsv.xz`) in the folder `path`, or in `listops-1000/` inside it."""
        data = cast(Data, self._settings(data))
        files = _official_files(Path(path))
        read = {split: list(_read_rows(file)) for split, file in files.items()}
        found = {split: len(rows) for split, rows in read.items()}
        asked = {split: getattr(data, split) for split in SPLITS}
        if found != asked:
            raise UsageError(
                f"The settings ask for {_counts(asked)} expressions, {path} holds {_counts(found)}; "
                "import them with settings of these counts."
            )

        def fill(folder: Path) -> dict:
            arrays, label_counts = {}, {}
            for split, rows in read.items():
                lengths = np.array([len(ids) for ids, _ in rows], np.int64)
                labels = np.array([label for _, label in rows], np.uint8)
                arrays |= write_split(folder, split, lengths, labels, (ids for ids, _ in rows))
                label_counts[split] = count_labels(labels)
            return self._manifest(data, "imported", found, label_counts, arrays)

        self._publish(self.folder(data, root, imported=True), fill, replace=True)
        return self.load(data, root=root, variant="imported")


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits, generated at the first call: `listops.load(listops.Data())`."""
    return ListOps().load(data, root=root)


def encode(text: str) -> np.ndarray:
    """Ids of an expression, with or without the official round brackets; `X` stands for `]`, as in LRA's tokeniser.

    >>> encode("( ( ( [MAX 2 ) 3 ) ] )").tolist()
    [11, 3, 4, 15]
    """
    words = text.replace("(", " ").replace(")", " ").split()
    return np.array([_ID.get(word, UNKNOWN) for word in words], np.uint8)


def decode(ids: Iterable[int]) -> str:
    """The expression without round brackets; padding is left out.

    >>> decode([11, 3, 4, 15, 0, 0])
    '[MAX 2 3 ]'
    """
    return " ".join(_WORD[int(id)] for id in ids if id != PAD)


def evaluate(ids: Iterable[int]) -> int:
    """The digit an expression stands for, read from left to right with a stack; the law that labels must obey.

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
    tokens = np.empty(count * (data.shorter_than - 1) + 1, np.uint8)  # a tree is given up one token too late
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
                else:  # the two middle ranks (one and the same when count is odd), averaged and cut
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


def _official_files(folder: Path) -> dict[str, Path]:
    names = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
    inside = [folder, folder / "listops-1000", folder / "lra_release" / "listops-1000"]
    for place in [*inside, folder / "lra_release" / "lra_release" / "listops-1000"]:
        for ending in ("", ".xz"):
            files = {split: place / f"{name}{ending}" for split, name in names.items()}
            if all(file.is_file() for file in files.values()):
                return files
    raise DataMissing(
        f"{folder} was named as the place of ListOps, but {', '.join(names.values())} are not in it; "
        f"unpack them from {ListOps.meta.source} and name their folder."
    )


def _read_rows(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Ids and label of every row, all of them checked."""
    with _open_text(path) as handle:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        rows = csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(rows, None)
        if header != ["Source", "Target"]:
            raise CorruptFile(f"{path} should begin with the columns Source and Target, found {header}; get it again.")
        for number, row in enumerate(rows, start=2):
            if len(row) != 2 or row[1] not in SYMBOLS[:10]:
                raise CorruptFile(f"{path}, line {number}: expected an expression and a digit, found {row!r:.80}.")
            ids = encode(row[0])
            if len(ids) == 0 or UNKNOWN in ids:
                raise CorruptFile(f"{path}, line {number}: the expression has words that ListOps does not know.")
            yield ids, int(row[1])


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _counts(counts: dict[str, int]) -> str:
    return " / ".join(str(counts[split]) for split in SPLITS)
