"""PG-19: 28,752 books of Project Gutenberg printed before 1919, as one token stream per split (arXiv:1911.05507).

Books are stored once as bytes. Settings choose the tokenizer (byte-level BPE trained on the training books, or GPT-2's)
and the rows: a split is the books in order of their numbers, every line stripped and ended by `</s>`, cut regardless of
books into blocks of `length` tokens (`breaks="none"`), or into as many whole lines as fit (`"complete"`). Each
tokenizer has a folder of memory-mapped streams; `length` and `breaks` are views of them.

A copy without a validation split gets one: a tenth of its training books, those whose number has the smallest sha256.
The manifest lists them. Departs from the Comprehensive Attention Benchmark in: a line too long for a block is split.
"""

import contextlib
import csv
import functools
import hashlib
import io
import lzma
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np

from longspan.core.archive import is_archive, members
from longspan.core.atomic import storage_errors, temporary_beside, write_bytes
from longspan.core.download import fetch, need_room, transfer_bar
from longspan.core.errors import CorruptFile, DataDamaged, DataMissing, UsageError
from longspan.core.lock import only_one
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets import bpe, digests
from longspan.datasets.base import (
    MANIFEST_SCHEMA,
    SPLITS,
    DatasetMeta,
    Sample,
    Split,
    Splits,
    Status,
    by_tier,
    canonical,
    check_counts,
    data_root,
)
from longspan.datasets.bpe import streams
from longspan.datasets.corpus import Corpus, spread
from longspan.datasets.generation.arrays import write_arrays
from longspan.datasets.generation.manifest import advice
from longspan.datasets.generation.shards import Shard
from longspan.datasets.generation.verified import map_arrays
from longspan.datasets.standins.novels import make_novel

BUCKET = "https://storage.googleapis.com/deepmind-gutenberg"
METADATA = Source(
    f"{BUCKET}/metadata.csv",
    "metadata.csv",
    size=2_737_447,
    sha256="fbb2fdb48522927b2e16aa52950f2afeb83c6fa8fed45f0c3dd834e9bc9b43b9",
    dataset="pg19",
    licence="the books are in the public domain in the USA; the metadata is under Apache-2.0.",
)
FOLDERS = {"train": "train", "valid": "validation", "test": "test"}  # our split names, and those in URLs
BOOKS = {"train": 28_602, "valid": 50, "test": 100}
TEXT_BYTES = {"train": 11_680_635_853, "valid": 17_733_002, "test": 41_289_101}
BYTES_PER_TOKEN = 4  # about, for estimates before anything is on disk
LARGEST = 64 << 20  # bytes of a book
LEARNED_FROM = 256 << 20  # bytes of training text that BPE is trained on
CONNECTIONS = 8
STANDIN_SHARD, STANDIN_BOOK = 4, 6_000  # books, bytes
SHOWN = 400  # characters of a book that `show` prints
GET_GPT2 = (
    "get encoder.json and vocab.bpe from https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe (1.5 MB), put them there, or "
    "train a tokenizer on the text instead: --set data.tokenizer=own."
)


@dataclass(frozen=True)
class Data:
    """Settings: `length` tokens per row, what ends a row, the tokenizer, and how many books are taken (None is all).

    `vocabulary` counts tokens, including the four special ones; if the text has fewer, ids stay unused; more are
    refused. `scored` names the split used as the test split; `seed` is for stand-ins and for the fixed masks of
    evaluation.
    """

    length: int = 8_192
    breaks: Literal["none", "complete"] = "none"
    tokenizer: Literal["own", "gpt2"] = "own"
    vocabulary: int = 48_528
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    scored: Literal["test", "validation"] = "test"
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        if self.length < 1:
            raise UsageError(f"A row has at least 1 token, got length={self.length}.")
        if self.vocabulary < bpe.FEWEST:
            raise UsageError(f"Byte-level BPE has at least {bpe.FEWEST} tokens, got vocabulary={self.vocabulary}.")
        for name in ("breaks", "tokenizer", "scored"):
            if (found := getattr(self, name)) not in get_args(Data.__annotations__[name]):
                words = " or ".join(map(repr, get_args(Data.__annotations__[name])))
                raise UsageError(f"PG-19 takes {words} for {name}, got {found!r}; pick one.")


PRESETS = {
    "lm": by_tier(
        full={"longspan": Data(), "cab-2023": Data(tokenizer="gpt2")},
        lite=Data(vocabulary=8_192, train=200, valid=10, test=20),
        smoke=Data(length=128, vocabulary=512, train=24, valid=4, test=4, standin=True),
        other_smoke={"cab-2023": Data(length=128, vocabulary=512, train=24, valid=4, test=4, standin=True)},
    ),
    "mlm": by_tier(
        full={
            "longspan": Data(length=2_047),
            "cab-2023": Data(length=2_047, breaks="complete", tokenizer="gpt2", scored="validation"),
        },
        lite=Data(length=2_047, vocabulary=8_192, train=200, valid=10, test=20),
        smoke=Data(length=31, vocabulary=512, train=24, valid=4, test=4, standin=True),
        other_smoke={
            "cab-2023": Data(
                31, "complete", vocabulary=512, train=24, valid=4, test=4, scored="validation", standin=True
            )
        },
    ),
}


@dataclass(frozen=True, eq=False)
class Stream(Split):
    """Rows of a token stream, and the frequency of each token in the training text; there are no labels."""

    frequencies: np.ndarray  # int64 [vocabulary]

    def blocks(self, length: int) -> "Stream":
        """The same tokens in consecutive rows of this length, the last one possibly shorter."""
        return replace(self, **_rows(self.tokens, length, "none"))

    def first(self, tokens: int) -> "Stream":
        """Only the first tokens of the stream, as one row."""
        return replace(self, tokens=self.tokens[:tokens], **_rows(self.tokens[:tokens], tokens, "none"))


class Book(NamedTuple):
    split: str
    number: int
    where: str
    read: Callable[[], bytes]


class Downloads(NamedTuple):
    """Books that were downloaded and verified."""

    folder: Path
    numbers: dict[str, list[int]]


class Pg19(Corpus):
    meta = DatasetMeta(
        title="PG-19",
        source=BUCKET,
        paper="arXiv:1911.05507",
        size="28,752 books, 11.7 GB as text, some 6 GB more as tokens",
        vocabulary=48_528,
        classes=1,
        generated=False,
    )
    sizes = BOOKS
    encoding = 1  # raised when the same text and settings give different tokens

    def counts(self, data: Data) -> dict[str, int]:
        """About how many rows each split has, before anything is on disk."""
        taken = {split: min(getattr(data, split) or BOOKS[split], BOOKS[split]) for split in SPLITS}
        book = {split: STANDIN_BOOK if data.standin else TEXT_BYTES[split] / BOOKS[split] for split in SPLITS}
        return {s: max(1, int(taken[s] * book[s] / BYTES_PER_TOKEN / data.length)) for s in SPLITS}

    def key(self, data: Data) -> str:
        books = "-".join("all" if (n := getattr(data, split)) is None else str(n) for split in SPLITS)
        return f"books{books}"

    # Getting the books

    def obtain(self, downloads: Path, *, progress: bool = True) -> Downloads:
        return self._fetch(downloads, Data(), progress)

    def _has(self, data: Data, root: Path | str | None) -> bool:
        """Whether enough books are on disk for these settings; an imported copy is never replaced."""
        if not (self._whole(root) / "manifest.json").exists():
            return False
        try:
            manifest = self._claims(self._whole(root))
        except CorruptFile:
            return False
        wanted = {split: BOOKS[split] if (n := getattr(data, split)) is None else n for split in SPLITS}
        enough = all(manifest["counts"][split] >= min(n, BOOKS[split]) for split, n in wanted.items())
        return enough or manifest["variant"] == "imported"

    def _fetch(self, downloads: Path, data: Data, progress: bool) -> Downloads:
        folder = downloads / self.name
        known = digests.published(self.name)
        held = {number for split in known.values() for number in split}
        listed = _read_metadata(fetch(METADATA, folder, progress=progress))
        every = {"train": [n for n in listed if str(n) not in held]}
        every |= {split: sorted(int(number) for number in files) for split, files in known.items()}
        wanted = {split: [every[split][i] for i in spread(len(every[split]), getattr(data, split))] for split in SPLITS}
        sources = [_source(split, number, known) for split in SPLITS for number in wanted[split]]
        absent = sum(not (folder / source.filename).exists() for source in sources)
        need_room(folder, absent * sum(TEXT_BYTES.values()) // sum(BOOKS.values()))
        with transfer_bar("books", len(sources), show=progress) as heard, ThreadPoolExecutor(CONNECTIONS) as pool:
            try:
                for _ in pool.map(lambda source: fetch(source, folder, progress=False), sources):
                    heard(1)
            except BaseException:
                pool.shutdown(cancel_futures=True)  # finished files stay; the next call resumes
                raise
        return Downloads(folder, wanted)

    def convert(self, source: Path | Downloads, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read `{train,validation,test}/<number>.txt` (also `.txt.xz`) from a folder, or from a tar or zip archive.

        Books are read twice, for their lengths and for their text, and never more than one is in memory.
        """
        known = digests.published(self.name)
        lengths: dict[str, dict[int, int]] = {split: {} for split in SPLITS}
        agree: list[int] = []
        differ: list[int] = []
        for book in _books(source):
            if any(book.number in of for of in lengths.values()):
                raise CorruptFile(f"{book.where}: book {book.number} is there twice; keep it in one split.")
            text = _checked(book)
            lengths[book.split][book.number] = len(text)
            if entry := known.get(book.split, {}).get(str(book.number)):
                (agree if hashlib.sha256(text).hexdigest() == entry.sha256 else differ).append(book.number)
        where = source.folder if isinstance(source, Downloads) else source
        held_out = _held_out(list(lengths["train"])) if not lengths["valid"] else []
        for number in held_out:
            lengths["valid"][number] = lengths["train"].pop(number)
        for split in SPLITS:
            if not lengths[split]:
                raise DataMissing(
                    f"{where} is no copy of PG-19: it has no books in {FOLDERS[split]}/<number>.txt "
                    f"(or .txt.xz); get some from {BUCKET}/{FOLDERS[split]}/."
                )
        need_room(folder / "text", sum(sum(of.values()) for of in lengths.values()))
        arrays = _write_text(folder, lengths, lambda: _books(source))
        counts = {split: len(lengths[split]) for split in SPLITS}
        published = counts == BOOKS or isinstance(source, Downloads)
        official = published and not held_out and not differ
        return arrays, {
            "variant": "official" if official else "imported",
            "counts": counts,
            "complete": counts == BOOKS,
            "text_bytes": {split: sum(lengths[split].values()) for split in SPLITS},
            "published_digests": {"agree": len(agree), "differ": sorted(differ)},
            "validation": f"held out of train: {sorted(held_out)}" if held_out else "as published",
        }

    # Looking at them

    def load(
        self,
        data: Any = None,
        *,
        root: Path | str | None = None,
        variant: str | None = None,
        real: bool = False,
    ) -> Splits:
        """The streams, tokenized at the first call; without books an error, or stand-ins if allowed."""
        data = self._settings(data)
        self._check(variant)
        text = self._text(data, root, variant, real)
        if text is None:
            raise self._absent(root)
        folder = self._cut(text, data, root)
        arrays, manifest = self._open(folder)
        if not _is_of(manifest, arrays, text, data):
            raise DataDamaged(f"{folder} holds the tokens of other books or settings; {advice(folder)}")
        return self._viewed(arrays, manifest, data)

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Split]:
        splits: dict[str, Split] = {}
        for split in SPLITS:
            source = "valid" if split == "test" and data.scored == "validation" else split
            tokens = arrays[f"{source}.tokens"]
            rows = _rows(tokens, data.length, data.breaks, whole=split == "train")
            splits[split] = Stream(tokens=tokens, frequencies=np.asarray(arrays["train.counts"]), **rows)
        return splits

    def status(self, data: Any = None, *, root: Path | str | None = None) -> Status:
        data = self._settings(data)
        whole = self._whole(root)
        if not (whole / "manifest.json").exists() and not data.standin:
            return Status(self.name, whole, False)
        try:
            text = self._text(data, root, None, False, make=False)
            folder = whole if text is None else self._stream_folder(text[1], data, root)
            if text is None or not (folder / "manifest.json").exists():
                return Status(self.name, folder, False)
            manifest = self._claims(folder)
            counts = self._viewed(map_arrays(folder, manifest), manifest, data).counts
        except (CorruptFile, UsageError) as error:
            return Status(self.name, whole, False, problem=str(error))
        size = sum(entry["bytes"] for entry in manifest["arrays"].values())
        return Status(self.name, folder, True, manifest["variant"], counts, size)

    def verify(self, data: Any = None, *, root: Path | str | None = None) -> list[str]:
        whole = self._whole(root)
        damaged = self._problems(whole) if (whole / "manifest.json").exists() else []
        return damaged + super().verify(data, root=root)

    def _of_setting(self, folder: Path, data: Any) -> None:
        """A folder of streams serves every length and every way to break rows."""

    def samples(self, data: Any = None, count: int = 8, seed: int = 0) -> list[Sample]:
        """The first lines of some training books."""
        data = self._settings(data)
        if self.invents(data):
            shards = [self.make_shard(data, index) for index in range(-(-count // STANDIN_SHARD))]
            books = [book.tobytes() for shard in shards for book in shard.rows()]
        else:
            text = self._text(data, None, None, True)
            if text is None:
                raise self._absent(None)
            books = [text[0]["train"].example(i) for i in range(len(text[0]["train"]))]
        rng = np.random.Generator(np.random.PCG64(derive(seed, self.name, "samples")))
        rows = rng.choice(len(books), min(count, len(books)), replace=False)
        return [Sample(bytes(books[row][: 4 * SHOWN]).decode(errors="ignore").strip()[:SHOWN], 0) for row in rows]

    # Stand-ins

    def shard_size(self, data: Data) -> int:
        return STANDIN_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, self.name, "standin", index)))
        books = [np.frombuffer(make_novel(rng, STANDIN_BOOK), np.uint8) for _ in range(STANDIN_SHARD)]
        lengths = np.array([len(book) for book in books], np.int64)
        return Shard(np.concatenate(books), lengths, np.zeros(len(books), np.uint8))

    def _invent(self, data: Data, target: Path) -> None:
        def fill(folder: Path) -> dict:
            counts = {split: getattr(data, split) or BOOKS[split] for split in SPLITS}
            wanted = sum(counts.values())
            shards = [self.make_shard(data, index) for index in range(-(-wanted // STANDIN_SHARD))]
            books = iter([book for shard in shards for book in shard.rows()][:wanted])
            arrays = {}
            for split in SPLITS:
                made = [next(books) for _ in range(counts[split])]
                arrays |= _write_split(folder, split, {i: len(book) for i, book in enumerate(made)}, made)
            return self._manifest(data, self.made, counts, {}, arrays)

        self._publish(target, fill, replace=True)

    # From text to streams

    def _text(
        self, data: Data, root: Path | str | None, variant: str | None, real: bool, *, make: bool = True
    ) -> tuple[dict[str, Split], dict] | None:
        """The books of each split as bytes, with their manifest: real ones, else stand-ins if allowed."""
        folder, books = self._whole(root), None
        real_one = variant != "standin" and (folder / "manifest.json").exists()
        if not real_one or variant not in (None, self._claims(folder)["variant"]):
            if variant not in (None, "standin") or not data.standin or real:
                return None
            books = Data(**{name: getattr(data, name) for name in (*SPLITS, "seed", "standin")})
            folder = self.folder(books, root)
            if not (folder / "manifest.json").exists():
                if not make:
                    return None
                self._invent(books, folder)
        manifest = self._claims(folder, books)
        arrays = self._open(folder, books)[0] if make else map_arrays(folder, manifest)
        parts = ("text", "starts", "numbers")
        return {split: Split.of_rows(*(arrays[f"{split}.{part}"] for part in parts)) for split in SPLITS}, manifest

    def _stream_folder(self, manifest: dict, data: Data, root: Path | str | None) -> Path:
        text = hashlib.sha256(canonical(manifest["arrays"]).encode()).hexdigest()
        identity = [text, self.encoding, data.tokenizer, data.vocabulary, *(getattr(data, split) for split in SPLITS)]
        short = hashlib.sha256(canonical(identity).encode()).hexdigest()[:8]
        return data_root(root) / self.name / f"{data.tokenizer}{data.vocabulary}-{self.key(data)}-{short}"

    def _cut(self, text: tuple[dict[str, Split], dict], data: Data, root: Path | str | None) -> Path:
        """The folder of the streams; an interrupted call is resumed."""
        books, manifest = text
        target = self._stream_folder(manifest, data, root)
        if (target / "manifest.json").exists():
            return target
        work = target.with_name(f"{target.name}.work")
        with storage_errors(target):
            work.mkdir(parents=True, exist_ok=True)
            with only_one(work / "lock", f"{self.name} in {target}"):
                if not (target / "manifest.json").exists():
                    chosen = {s: books[s].rows(spread(len(books[s]), getattr(data, s))) for s in SPLITS}
                    Cutter(chosen, work, data, data_root(root)).cut()
                    self._publish(target, lambda folder: self._join(chosen, work, folder, data, manifest), replace=True)
                shutil.rmtree(work, ignore_errors=True)
        return target

    def _join(self, chosen: dict[str, Split], work: Path, folder: Path, data: Data, text: dict) -> dict:
        """Streams and counts from the tokenized books."""
        coder = _coder(work / "tokenizer.json")
        raw = {split: [work / _name(split, i) for i in range(len(chosen[split]))] for split in SPLITS}
        own, seen = data.tokenizer == "own", _count(raw["train"], len(coder) + 1)
        dictionary = streams.Dictionary.of_own(coder) if own else streams.Dictionary.of_counts(coder, seen)
        if dictionary.size > data.vocabulary:
            raise UsageError(
                f"The training books have a vocabulary of {dictionary.size:,} pieces, but the network has room for "
                f"{data.vocabulary:,}; set data.vocabulary={dictionary.size}, or take the books the protocol means."
            )
        dtype = np.dtype(np.uint16 if data.vocabulary <= 1 << 16 else np.uint32)
        content = np.frombuffer(coder.to_json(), np.uint8)
        contents = {
            "tokenizer": (np.uint8, content.shape, [content]),
            "numbers": (np.uint32, dictionary.numbers.shape, [dictionary.numbers]),
        }
        arrays, tokens = write_arrays(folder, contents), {}
        for split in SPLITS:
            total = np.zeros(data.vocabulary, np.int64)
            tokens[split] = sum(len(np.load(path, mmap_mode="r")) for path in raw[split])
            stream = (_counted(dictionary.numbers[np.load(path)], total) for path in raw[split])
            contents = {  # in this order: the counts are complete only once the stream is written
                f"{split}.tokens": (dtype, (tokens[split],), stream),
                f"{split}.counts": (np.int64, total.shape, [total]),
            }
            arrays |= write_arrays(folder, contents)
        kept = {name: text[name] for name in ("variant", "validation", "complete", "published_digests") if name in text}
        return {
            "schema": MANIFEST_SCHEMA,
            "dataset": self.name,
            "arrays": arrays,
            "books": {split: np.asarray(chosen[split].labels).tolist() for split in SPLITS},
            "tokens": tokens,
            "vocabulary": dictionary.size,
            "text": hashlib.sha256(canonical(text["arrays"]).encode()).hexdigest(),
            **kept,
        }


def _is_of(manifest: dict, arrays: Mapping[str, np.ndarray], text: tuple[dict[str, Split], dict], data: Data) -> bool:
    """Whether streams were made from these books with these settings."""
    books, told = text
    chosen = {s: np.asarray(books[s].labels)[spread(len(books[s]), getattr(data, s))].tolist() for s in SPLITS}
    return (
        manifest.get("text") == hashlib.sha256(canonical(told["arrays"]).encode()).hexdigest()
        and manifest.get("books") == chosen
        and all(arrays[f"{split}.counts"].shape == (data.vocabulary,) for split in SPLITS)
    )


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `pg19.load(pg19.Data(length=2048))`."""
    return Pg19().load(data, root=root)


def decode(folder: Path, stream: np.ndarray) -> str:
    """The text behind tokens of a folder of streams."""
    arrays, _ = Pg19()._open(folder)
    coder = bpe.of_json(np.asarray(arrays["tokenizer"]).tobytes(), str(folder / "tokenizer.npy"))
    numbers = np.asarray(arrays["numbers"])
    return streams.decode(coder, streams.Dictionary(numbers, int(numbers.max()) + 1).raw(stream))


class Cutter:
    """Tokenizes books, a file each in the folder `work`, so that an interrupted call can be resumed."""

    def __init__(self, books: Mapping[str, Split], work: Path, data: Data, root: Path):
        self.books, self.work, self.data, self.root = books, work, data, root

    def cut(self) -> None:
        total = sum(int(books.lengths.sum()) for books in self.books.values())
        need_room(self.work / "tokens", total)  # two copies of twice the expected number of tokens
        coder = self.coder()
        with transfer_bar(f"pieces of {self.data.vocabulary:,}", total, show=True) as heard:
            for split, books in self.books.items():
                for i in range(len(books)):
                    path, text = self.work / _name(split, i), _bytes(books, i)
                    if not _is_sound(path):
                        with temporary_beside(path) as temporary, temporary.open("wb") as handle:
                            np.save(handle, streams.encode(coder, text))
                    heard(len(text))

    def coder(self) -> bpe.Coder:
        """GPT-2's tokenizer, or one trained on the training books, which is saved for the next call."""
        kept = self.work / "tokenizer.json"
        if not kept.exists():
            if self.data.tokenizer == "gpt2":
                coder = bpe.load(self.root / "tokenizers" / "gpt2", wanted="The vocabulary of GPT-2", remedy=GET_GPT2)
            else:
                print(f"pg19: learning {self.data.vocabulary:,} pieces from the training books", file=sys.stderr)
                coder = bpe.train(self._sample(), self.data.vocabulary - len(bpe.SPECIALS))
            write_bytes(kept, coder.to_json())
        return _coder(kept)

    def _sample(self) -> Iterator[list[str]]:
        """Evenly spaced lines of the training books, up to LEARNED_FROM bytes."""
        books = self.books["train"]
        whole = int(books.lengths.sum())
        for i in spread(len(books), max(1, len(books) * LEARNED_FROM // max(whole, 1))):
            yield streams.lines_of(_bytes(books, int(i)))


# Reading books


def _books(source: Path | Downloads) -> Iterator[Book]:
    """Every book of a source, in its order."""
    if isinstance(source, Downloads):
        for split, numbers in source.numbers.items():
            for number in numbers:
                path = source.folder / FOLDERS[split] / f"{number}.txt"
                yield _book(f"{FOLDERS[split]}/{path.name}", str(path), functools.partial(path.open, "rb"))
    elif source.is_file():
        if not is_archive(source):
            raise CorruptFile(f"{source} is no tar or zip archive of books; name a folder or an archive of PG-19.")
        for member in members(source, lambda name: _NAME.search(name) is not None):
            yield _book(member.name, f"{source}, {member.name}", functools.partial(io.BufferedReader, member))
    else:
        nested = next((source / name for name in ("pg19", "deepmind-gutenberg") if (source / name).is_dir()), source)
        for path in sorted(nested.glob("*/*.txt*")):
            name = f"{path.parent.name}/{path.name}"
            if _NAME.search(name):
                yield _book(name, str(path), functools.partial(path.open, "rb"))


_NAME = re.compile(r"(?:^|/)(train|validation|valid|test)/(\d{1,9})\.txt(\.xz)?$")


def _book(name: str, where: str, open_it: Callable[[], IO[bytes]]) -> Book:
    found = _NAME.search(name)
    assert found is not None, f"{name} is no name of a book"
    split = "valid" if found[1] == "validation" else found[1]
    return Book(split, int(found[2]), where, functools.partial(_read, open_it, found[3] is not None))


def _read(open_it: Callable[[], IO[bytes]], packed: bool) -> bytes:
    """At most one byte more than a book may have."""
    with open_it() as handle:
        if not packed:
            return handle.read(LARGEST + 1)
        try:
            with lzma.open(handle) as unpacked:
                return unpacked.read(LARGEST + 1)
        except (lzma.LZMAError, EOFError) as error:
            raise CorruptFile(f"the book cannot be unpacked ({error}); get it again.") from error


def _checked(book: Book) -> bytes:
    try:
        text = book.read()
        text.decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{book.where}: the book is not UTF-8 ({error.reason} at byte {error.start}).") from error
    except CorruptFile as error:
        raise CorruptFile(f"{book.where}: {error}") from error
    if not text.strip() or len(text) > LARGEST:
        raise CorruptFile(f"{book.where}: a book has 1 to {LARGEST:,} bytes of text, found {len(text):,}.")
    return text


def _write_text(
    folder: Path, lengths: dict[str, dict[int, int]], books: Callable[[], Iterator[Book]]
) -> dict[str, dict]:
    """The books of each split, sorted by number; they may come in any order."""
    arrays: dict[str, dict] = {}
    split_of = {number: split for split, of in lengths.items() for number in of}
    place = {number: int(edge) for of in lengths.values() for number, edge in zip(sorted(of), _edges(of), strict=False)}
    loose = {split: folder / f".{split}.text" for split in SPLITS}
    with contextlib.ExitStack() as stack:
        handles = {split: stack.enter_context(path.open("wb")) for split, path in loose.items()}
        for book in books():
            text, split = _checked(book), split_of[book.number]
            if len(text) != lengths[split][book.number]:
                raise CorruptFile(f"{book.where} changed while it was read; import it again.")
            handles[split].seek(place[book.number])
            handles[split].write(text)
    for split in SPLITS:
        arrays |= _write_split(folder, split, lengths[split], _pieces(loose[split]))
        loose[split].unlink()
    return arrays


def _write_split(folder: Path, split: str, lengths: Mapping[int, int], text: Iterable[np.ndarray]) -> dict[str, dict]:
    """The arrays of one split: the text of its books one after another, their edges and their numbers."""
    edges, numbers = _edges(lengths), np.array(sorted(lengths), np.int64)
    contents = {
        f"{split}.text": (np.uint8, (int(edges[-1]),), text),
        f"{split}.starts": (np.int64, edges.shape, [edges]),
        f"{split}.numbers": (np.int64, numbers.shape, [numbers]),
    }
    return write_arrays(folder, contents)


def _edges(lengths: Mapping[int, int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([lengths[number] for number in sorted(lengths)], dtype=np.int64)])


def _pieces(path: Path) -> Iterator[np.ndarray]:
    with path.open("rb") as handle:
        while piece := handle.read(1 << 24):
            yield np.frombuffer(piece, np.uint8)


def _held_out(numbers: list[int]) -> list[int]:
    """A tenth of the training books, at least one where there are two."""
    ordered = sorted(numbers, key=lambda number: hashlib.sha256(str(number).encode()).digest())
    return ordered[: max(1, len(numbers) // 10)] if len(numbers) > 1 else []


def _read_metadata(path: Path) -> list[int]:
    """The numbers of all books: the first column of a table without a header."""
    numbers = []
    with path.open(encoding="utf-8", newline="") as handle:
        for place, row in enumerate(csv.reader(handle), start=1):
            if not row or not re.fullmatch(r"\d{1,9}", row[0]):
                raise CorruptFile(f"{path}, row {place}: expected the number of a book first, found {row!r:.60}.")
            numbers.append(int(row[0]))
    return sorted(set(numbers))


def _source(split: str, number: int, known: dict[str, dict[str, digests.Digest]]) -> Source:
    name = f"{FOLDERS[split]}/{number}.txt"
    entry = known.get(split, {}).get(str(number))
    size, sha256 = entry if entry else (None, None)
    return Source(f"{BUCKET}/{name}", name, size=size, sha256=sha256, dataset="pg19", licence=METADATA.licence)


# Rows and tokens


def _rows(tokens: np.ndarray, length: int, breaks: str, *, whole: bool = False) -> dict[str, np.ndarray]:
    """Where the rows of a stream begin and end; `whole` leaves out a last block that is too short."""
    total = len(tokens)
    if breaks == "complete":
        edges = [0]
        while (start := edges[-1]) < total:
            ends = np.flatnonzero(tokens[start : start + length] == bpe.END)
            room = min(length, total - start)
            edges.append(start + (int(ends[-1]) + 1 if len(ends) and room == length else room))
        starts, stops = np.array(edges[:-1], np.int64), np.array(edges[1:], np.int64)
    else:
        starts = np.arange(0, total, length, dtype=np.int64)
        stops = np.minimum(starts + length, total)
        if whole and len(starts) > 1 and stops[-1] - starts[-1] < length:
            starts, stops = starts[:-1], stops[:-1]
    return {"starts": starts, "stops": stops, "labels": np.zeros(len(starts), np.uint8)}


def _coder(path: Path) -> bpe.Coder:
    return bpe.of_json(path.read_bytes(), str(path))


def _name(split: str, i: int) -> str:
    return f"{split}-{i:06d}.npy"


def _bytes(books: Split, i: int) -> bytes:
    return np.asarray(books.example(i)).tobytes()


def _is_sound(path: Path) -> bool:
    try:
        np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False
    return True


def _count(paths: list[Path], size: int) -> np.ndarray:
    total = np.zeros(size, np.int64)
    for path in paths:
        total += np.bincount(np.load(path), minlength=size)
    return total


def _counted(stream: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The stream itself, after adding the counts of its tokens to `total`."""
    total += np.bincount(stream, minlength=len(total))
    return stream
