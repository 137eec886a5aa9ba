"""AAN: does one paper cite the other? Pairs of texts from the ACL Anthology Network, byte by byte (Long Range Arena).

An example is two texts, one token per byte; label 1 means that one paper cites the other. Every text is truncated to
10,000 bytes and stored once; pairs refer to it. The tables of the release have five columns and no quoting: label, id1,
id2, text1, text2. Departs from the release in: an empty text becomes one space.
"""

import ast
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from longspan.core.archive import members, stream
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.lines import lines
from longspan.core.remote import Remote, Source, ask
from longspan.core.seeding import derive
from longspan.datasets.base import (
    LATER,
    SPLITS,
    DatasetMeta,
    Sample,
    Split,
    Splits,
    by_tier,
    check_counts,
    count_labels,
)
from longspan.datasets.characters import Tokens, in_characters
from longspan.datasets.corpus import BETWEEN, Corpus, apart, evenly
from longspan.datasets.generation.arrays import write_array
from longspan.datasets.generation.shards import Shard
from longspan.datasets.standins.abstracts import make_pair

VOCAB = 256
CLASSES = 2
STORED = 10_000  # bytes of a text that are stored
RELEASE = Source(
    "https://storage.googleapis.com/long-range-arena/lra_release.gz",
    "lra_release.gz",
    dataset="aan",
    licence="no licence is stated for the texts; for research, cite Radev et al. 2013 and arXiv:2011.04006.",
)
FILES = {"train": "train", "valid": "eval", "test": "test"}  # our split names, and those in file names
STANDIN_SHARD = 500


@dataclass(frozen=True)
class Data:
    """Settings: how many tokens of a text are read, how many pairs are taken (None is all); `seed` is for stand-ins.

    Tokens are bytes, or the characters of the training texts.
    """

    length: int = 4_000
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    seed: int = 0
    standin: bool = False
    tokens: Tokens = field(default="bytes", metadata=LATER)

    def __post_init__(self):
        check_counts(self)
        if not 1 <= self.length <= STORED:
            raise UsageError(f"A text is cut to 1 .. {STORED:,} tokens, got length={self.length}; choose one of these.")


_LRA = by_tier(
    full=dict.fromkeys(("longspan", "lra-paper", "lra-released"), Data()),
    smoke=Data(length=192, train=2_000, valid=200, test=1_000, standin=True),
)
_STRONG = dict.fromkeys((("strong", "lite"), ("strong", "full")), Data(length=3_999, tokens="characters"))
_STRONG["strong", "smoke"] = Data(length=191, train=2_000, valid=200, test=1_000, tokens="characters", standin=True)
PRESETS = {"retrieval": _LRA | _STRONG, "retrieval_30k": _LRA}


class Pair(NamedTuple):
    label: int
    first: bytes
    second: bytes


class Aan(Corpus):
    meta = DatasetMeta(
        title="AAN citation pairs",
        source=f"{RELEASE.url} (tsv_data/)",
        paper="arXiv:2011.04006",
        size="182,613 pairs of papers, an archive of about 8.2 GB of which little is kept",
        vocabulary=VOCAB,
        classes=CLASSES,
        generated=False,
    )
    sizes = {"train": 147_086, "valid": 18_090, "test": 17_437}

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"length{data.length}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path | Remote:
        """The archive if it is in the downloads folder, else a `Remote` to stream it from: it is never stored."""
        here = downloads / RELEASE.filename
        return here if here.is_file() else ask(RELEASE)

    def convert(self, source: Path | Remote, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read `tsv_data/` in the release (archive, network or folder), or tables of ids with the texts beside them."""
        documents = _Documents()
        read: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        for split, pairs in _tables(source):
            labels, columns = read.setdefault(split, ([], []))
            for pair in pairs:
                labels.append(pair.label)
                columns.append((documents.number(pair.first), documents.number(pair.second)))
        where = source.source.address if isinstance(source, Remote) else source
        arrays, counts, label_counts = {}, {}, {}

        def write(name: str, dtype: Any, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
            arrays[f"{name}.npy"] = write_array(folder / f"{name}.npy", dtype, shape, pieces)

        edges = np.concatenate([[0], np.cumsum([len(text) for text in documents.texts], dtype=np.int64)])
        write("texts.tokens", np.uint8, (int(edges[-1]),), (np.frombuffer(text, np.uint8) for text in documents.texts))
        write("texts.starts", np.int64, edges.shape, [edges])
        for split in SPLITS:
            labels, columns = read.get(split, ([], []))
            if not labels:
                raise CorruptFile(f"{where} has no pairs for {FILES[split]}; get the files again.")
            write(f"{split}.labels", np.uint8, (len(labels),), [np.array(labels)])
            write(f"{split}.pairs", np.int32, (len(labels), 2), [np.array(columns)])
            counts[split], label_counts[split] = len(labels), count_labels(np.array(labels))
        complete = counts == self.sizes
        if isinstance(source, Remote) and not complete:
            raise CorruptFile(f"{where} should hold {self.sizes} pairs, found {counts}; it is not the release.")
        facts = {"label_counts": label_counts, "texts": len(documents.texts), "complete": complete}
        if isinstance(source, Remote):
            return arrays, {"variant": "official", "counts": counts, "source": source.facts()} | facts
        return arrays, {"variant": "imported", "counts": counts} | facts

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Split]:
        tokens, edges = arrays["texts.tokens"], np.asarray(arrays["texts.starts"])
        splits = {}
        for name in SPLITS:
            labels, pairs = arrays[f"{name}.labels"], np.asarray(arrays[f"{name}.pairs"])
            rows = evenly(np.asarray(labels), np.arange(len(labels)), getattr(data, name))
            splits[name] = Split(tokens, edges[pairs], edges[pairs + 1], labels).rows(rows)
        return splits

    def read_as(self, splits: dict[str, Split], data: Data) -> dict[str, Split]:
        if data.tokens == "characters":
            return in_characters(splits, data.length, least=1)
        return {name: split.cut(data.length) for name, split in splits.items()}

    def samples(self, data: Data | None = None, count: int = 8, seed: int = 0) -> list[Sample]:
        return super().samples(replace(cast(Data, self._settings(data)), tokens="bytes"), count, seed)

    def standin_view(self, made: Split, data: Data) -> Split:
        """Synthetic rows are `text1`, one zero byte, `text2`."""
        return apart(made)

    def shown(self, example: Any) -> str:
        first, second = (text.tobytes().decode(errors="replace") for text in example)
        return f"{first}\n    and\n{second}"

    def shard_size(self, data: Data) -> int:
        return STANDIN_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "aan", "standin", index)))
        made = [make_pair(rng, data.length) for _ in range(STANDIN_SHARD)]
        rows = [first + bytes([BETWEEN]) + second for first, second, _ in made]
        return Shard.of_texts(rows, [label for *_, label in made])


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `aan.load(aan.Data(length=4000))`."""
    return Aan().load(data, root=root)


class _Documents:
    """Distinct texts, numbered in order of appearance, each truncated to STORED bytes."""

    def __init__(self):
        self.texts: list[bytes] = []
        self.numbers: dict[bytes, int] = {}  # by the digest of a text, as written and as stored

    def number(self, written: bytes) -> int:
        key = _digest(written)
        if key not in self.numbers:
            text = plain(written)[:STORED] or b" "
            stored = _digest(text)
            if stored not in self.numbers:
                self.numbers[stored] = len(self.texts)
                self.texts.append(text)
            self.numbers[key] = self.numbers[stored]
        return self.numbers[key]


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def plain(written: bytes) -> bytes:
    r"""The bytes of a text: some copies of the tables have Python bytes literals instead.

    >>> plain(rb"b'caf\xc3\xa9'").decode()
    'café'
    """
    if not _LITERAL.fullmatch(written):
        return written
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about a backslash that stands for itself
        try:
            return ast.literal_eval(written.decode("ascii"))
        except (SyntaxError, ValueError):  # such as \x without two digits: not a literal after all
            return written


_LITERAL = re.compile(rb"""b'(?:[^'\\\n]|\\.)*'|b"(?:[^"\\\n]|\\.)*\"""")


# Layouts


def _tables(source: Path | Remote) -> Iterator[tuple[str, Iterator[Pair]]]:
    """The pairs of each split, in the order of the source."""
    names = {f"tsv_data/new_aan_pairs.{word}.tsv": split for split, word in FILES.items()}
    if isinstance(source, Remote) or source.is_file():
        for member in stream(source, names) if isinstance(source, Remote) else members(source, names):
            split = next(split for name, split in names.items() if member.name.endswith(name))
            yield split, _pairs(lines(member, f"{member.where}, {member.name}"), None)
        return
    nested = [source / "tsv_data", source / "lra_release/tsv_data", source / "lra_release/lra_release/tsv_data"]
    for folder in (source, *nested):
        for name in ("new_aan_pairs.{}.tsv", "new_aan_pairs.{}.only_ids.tsv", "pairs.{}.tsv"):
            files = {split: _packed_or_not(folder / name.format(word)) for split, word in FILES.items()}
            if all(files.values()):
                texts = _Texts(folder)
                for split, file in files.items():
                    yield split, _pairs(lines(cast(Path, file)), texts)
                return
    if (source / RELEASE.filename).is_file():
        yield from _tables(source / RELEASE.filename)
        return
    raise DataMissing(
        f"{source} is no copy of AAN: it has neither new_aan_pairs.{{train,eval,test}}.tsv (alone or "
        "in tsv_data/) nor pairs.{train,eval,test}.tsv with texts.jsonl or <id>.txt files; get them from "
        f"{RELEASE.url}."
    )


def _packed_or_not(path: Path) -> Path | None:
    return next((file for file in (path, path.with_name(f"{path.name}.xz")) if file.is_file()), None)


_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


def _pairs(rows: Iterable[tuple[bytes, str]], texts: "_Texts | None") -> Iterator[Pair]:
    """Rows of five columns, or of the first three if the texts are in separate files. There is no quoting."""
    for line, where in rows:
        columns = line.removesuffix(b"\r").split(b"\t")
        if columns[0] not in _LABELS or len(columns) not in (3, 5):
            raise CorruptFile(
                f"{where}: expected label 0.0 or 1.0, two ids and two texts between tabs, found {len(columns)} "
                f"columns: {line[:60]!r}."
            )
        if len(columns) == 3:
            if texts is None:
                raise CorruptFile(f"{where}: there are ids but no texts; get the tables with texts.")
            columns += [texts.of(id, where) for id in columns[1:]]
        yield Pair(_LABELS[columns[0]], columns[3], columns[4])


class _Texts:
    """Texts by id: `texts.jsonl` or `texts.jsonl.xz` in the folder, or a file `<id>.txt` in it or in `texts/`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known: dict[bytes, bytes] = {}
        self.table = _packed_or_not(folder / "texts.jsonl")

    def of(self, id: bytes, where: str) -> bytes:
        if not self.known and self.table:
            self.known = dict(_read_texts(self.table))
        if id not in self.known and not self.table and re.fullmatch(rb"[A-Za-z0-9][A-Za-z0-9._-]*", id):
            places = (self.folder / f"{id.decode()}.txt", self.folder / "texts" / f"{id.decode()}.txt")
            if file := next((place for place in places if place.is_file()), None):
                with file.open("rb") as handle:
                    self.known[id] = handle.read(STORED)
        if id not in self.known:
            found = self.table or f"{self.folder} with its {id[:40].decode(errors='replace')}.txt"
            raise CorruptFile(f"{where}: the paper {id[:40]!r} has no text in {found}; add it or leave the pair out.")
        return self.known[id]


def _read_texts(file: Path) -> Iterator[tuple[bytes, bytes]]:
    for line, where in lines(file):
        try:
            row = json.loads(line)
            yield row["id"].encode(), row["text"].encode(errors="surrogatepass")[:STORED]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptFile(f'{where}: expected {{"id": ..., "text": ...}}, found {line[:60]!r}.') from error
