"""Multi-News: from several newspaper articles about one event to the summary that an editor wrote of them (ACL 2019).

An example is a pair of texts: the articles, stripped and joined by ` ||||| `, and the summary. The published line files
write a line break as the word NEWLINE_CHAR; here it is a line break again. A pair is kept as text, for the score, and
beside it as tokens of a byte-level BPE, for the network: at most `source` for the articles, and `target` after the
first one for the summary.

    layout = "whole"     <s> articles </s>         <s> summary </s>      words are cut, so that every text has its end
    layout = "paragen"   <s> articles </s></s>     <s> summary </s>      cut at the end, so that long texts have none

The second is what CAB ran: the tokenizer adds `</s>`, and ParaGen one more to articles.

`vocabulary="own"` trains that BPE on the articles of the training split, with `size` entries at most; `"bart-base"`
takes the 50,265 entries of facebook/bart-base, which is what CAB uses, from the user's files. Texts are tokenized when
the tokens are first needed, and the tokens are kept. Departs from CAB in: articles are joined by the separator alone
(how CAB joined them is not known), and the cleaned revision of the articles is used.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from longspan.core.download import fetch
from longspan.core.errors import CorruptFile, DataDamaged, DataMissing, UsageError
from longspan.core.lines import lines
from longspan.core.remote import Source
from longspan.core.seeding import derive
from longspan.datasets import bpe
from longspan.datasets.base import (
    MANIFEST_SCHEMA,
    SPLITS,
    DatasetMeta,
    Split,
    Splits,
    by_tier,
    canonical,
    check_counts,
    data_root,
)
from longspan.datasets.bpe import Coder, Vocabulary
from longspan.datasets.corpus import BETWEEN, Corpus, apart, spread
from longspan.datasets.generation.arrays import hash_file, write_arrays
from longspan.datasets.generation.manifest import advice
from longspan.datasets.generation.shards import Shard
from longspan.datasets.standins.events import make_cluster

BART = 50_265
LARGEST = 1 << 16  # entries, whose ids are stored in 16 bits
SEPARATOR = "|||||"
LINE_BREAK = "NEWLINE_CHAR"
STANDIN_SHARD = 500
BATCH = 512  # texts encoded together


def _published(name: str, size: int, sha256: str) -> Source:
    return Source(
        f"https://huggingface.co/datasets/alexfabbri/multi_news/resolve/main/data/{name}",
        name,
        size=size,
        sha256=sha256,
        dataset="multi_news",
        licence="for non-commercial research and education only (LILY lab); cite Fabbri et al., ACL 2019.",
    )


FILES = (
    _published("train.src.cleaned", 547_512_283, "627781c8ce55d528fcdacd495db45583a915e2d24b7983b0a5a6693ede933bb1"),
    _published("train.tgt", 58_793_912, "e9e82b8f413b0f1ed4eb7c883f93bb744f829c218c1608b6ba7615d687d07121"),
    _published("val.src.cleaned", 66_875_522, "f0a43902da366eea2b882e39ddd4c0975ad44aba6b61095a2ea90362e9e2bb65"),
    _published("val.tgt", 7_295_302, "bb08a078e0cb2b8ca9cc0fe3bfbe9d4098dee706bd00eb97449155e41b880157"),
    _published("test.src.cleaned", 68_999_509, "138d3ac2dc899cbcd2e3745aaa94d1c1db55fb7058d9df4ba3ef2dac05a3a186"),
    _published("test.tgt", 7_309_099, "fa97cf91a62ae82a0af6da88f2ddf8e06eb4e3b90f7971d8e0c516436518fae3"),
)


@dataclass(frozen=True)
class Data:
    """Settings: how many tokens texts are cut to, which vocabulary, how many pairs (None is all).

    If not all pairs are taken, they are evenly spaced. `seed` is only for stand-ins.
    """

    source: int = 4_096
    target: int = 400
    vocabulary: Literal["own", "bart-base"] = "own"
    size: int = BART
    layout: Literal["whole", "paragen"] = "whole"
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    seed: int = 0
    standin: bool = False

    def __post_init__(self):
        check_counts(self)
        if self.source < 2 or self.target < 1:
            raise UsageError(
                f"Articles are cut to 2 tokens or more and summaries to 1, got source={self.source} and "
                f"target={self.target}."
            )
        for name in ("vocabulary", "layout"):
            if (found := getattr(self, name)) not in (known := get_args(Data.__annotations__[name])):
                raise UsageError(f"The {name} is {' or '.join(map(repr, known))}, got {found!r}; pick one.")
        if not bpe.FEWEST <= self.size <= LARGEST:
            raise UsageError(f"A vocabulary has {bpe.FEWEST} to {LARGEST:,} entries, got size={self.size}.")


PRESETS = {
    "summarization": by_tier(
        full={
            "longspan": Data(valid=200),
            "cab-2023": Data(vocabulary="bart-base", layout="paragen", valid=200),
        },
        smoke=Data(source=128, target=32, size=512, train=2_000, valid=50, test=200, standin=True),
        other_smoke={
            "cab-2023": Data(128, 32, size=512, layout="paragen", train=2_000, valid=50, test=200, standin=True)
        },
    )
}


class Pair(NamedTuple):
    articles: str
    summary: str


@dataclass(frozen=True, eq=False)
class Clusters(Split):
    """Pairs of texts as bytes, and beside them the same pairs as ids of a vocabulary."""

    ids: Split
    vocabulary: Vocabulary

    def summary(self, i: int) -> str:
        """The whole reference summary."""
        return self.tokens[self.starts[i, 1] : self.stops[i, 1]].tobytes().decode()


class MultiNews(Corpus):
    meta = DatasetMeta(
        title="Multi-News",
        source="https://huggingface.co/datasets/alexfabbri/multi_news",
        paper="https://aclanthology.org/P19-1102",
        size="56,216 clusters of articles, six files of 757 MB, about 1 GB as arrays",
        vocabulary=BART,
        classes=0,
        generated=False,
    )
    sizes = {"train": 44_972, "valid": 5_622, "test": 5_622}

    def key(self, data: Data) -> str:
        counts = "-".join(str(count) for count in self.counts(data).values())
        return f"tokens{data.source}to{data.target}-{data.vocabulary}{data.size}-n{counts}-seed{data.seed}"

    def obtain(self, downloads: Path, *, progress: bool = True) -> Path:
        for file in FILES:
            fetch(file, downloads / self.name, progress=progress)
        return downloads / self.name

    def convert(self, source: Path, folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
        """Read `{train,val,test}.{src,tgt}` with a cluster a line, or `{train,val,test}.jsonl`; as they are or .xz."""
        found = _find(source)
        arrays, counts = {}, {}
        for split, files in found.items():
            lengths = np.array([[len(text.encode()) for text in pair] for pair in _read(files)], np.int64)
            if not len(lengths):
                raise CorruptFile(f"{files[0]} has no clusters; get the files again.")
            texts = (np.frombuffer(text.encode(), np.uint8) for pair in _read(files) for text in pair)
            arrays |= _write_pairs(folder, split, np.uint8, lengths.ravel(), texts)
            counts[split] = len(lengths)
        published = {file.filename: file.sha256 for file in FILES}
        used = [file for files in found.values() for file in files]
        official = {file.name for file in used} == set(published) and all(
            hash_file(file) == published[file.name] for file in used
        )
        if official and counts != self.sizes:
            raise CorruptFile(f"{source} has the published hashes but not the published clusters; this is a bug here.")
        return arrays, {
            "variant": "official" if official else "imported",
            "counts": counts,
            "complete": counts == self.sizes,
        }

    def view(self, arrays: Mapping[str, np.ndarray], data: Data) -> dict[str, Split]:
        splits = {}
        for name in SPLITS:
            split = _pairs(arrays, name)
            splits[name] = split.rows(spread(len(split), getattr(data, name)))
        return splits

    def standin_view(self, made: Split, data: Data) -> Split:
        """Synthetic rows are articles, one zero byte, summary."""
        return apart(made)

    def shown(self, example: Any) -> str:
        articles, summary = (text.tobytes().decode(errors="replace") for text in example)
        return f"{articles}\n    in short\n{summary}"

    def shard_size(self, data: Data) -> int:
        return STANDIN_SHARD

    def make_shard(self, data: Data, index: int) -> Shard:
        rng = np.random.Generator(np.random.PCG64(derive(data.seed, "multi_news", "standin", index)))
        made = [make_cluster(rng) for _ in range(STANDIN_SHARD)]
        rows = [joined(reports).encode() + bytes([BETWEEN]) + summary.encode() for reports, summary in made]
        return Shard.of_texts(rows)

    # Tokens

    def load(
        self,
        data: Any = None,
        *,
        root: Path | str | None = None,
        variant: str | None = None,
        real: bool = False,
    ) -> Splits:
        """The pairs as texts and as tokens; the first call tokenizes them, which takes minutes for the whole corpus."""
        data = self._settings(data)
        texts = super().load(data, root=root, variant=variant, real=real)
        folder = self.tokens_folder(texts, data, root)
        if not (folder / "manifest.json").exists():
            self._publish(folder, lambda hidden: self._encode(texts, data, root, hidden), replace=False)
        arrays, manifest = self._open(folder)
        if manifest.get("texts") != texts.sha256:
            raise DataDamaged(f"{folder} holds the tokens of other texts; {advice(folder)}")
        vocabulary = _vocabulary(arrays)
        splits = {name: _joined(getattr(texts, name), _pairs(arrays, name), vocabulary) for name in SPLITS}
        named = {name: manifest[name] for name in ("vocabulary", "texts")}
        return Splits(**splits, manifest=texts.manifest | named | {"ids": manifest["arrays"]})

    def verify(self, data: Any = None, *, root: Path | str | None = None) -> list[str]:
        data = self._settings(data)
        if found := super().verify(data, root=root):
            return found
        folder = self.tokens_folder(super().load(data, root=root), data, root)
        return self._problems(folder) if (folder / "manifest.json").exists() else []

    def tokens_folder(self, texts: Splits, data: Data, root: Path | str | None = None) -> Path:
        """The folder with the tokens of these texts."""
        short = hashlib.sha256(canonical([texts.sha256, self.generator]).encode()).hexdigest()[:8]
        return data_root(root) / self.name / f"{data.vocabulary}-{short}"

    def vocabulary_folder(self, root: Path | str | None = None) -> Path:
        """Where the files of facebook/bart-base are expected."""
        return data_root(root) / "tokenizers" / "bart-base"

    def _encode(self, texts: Splits, data: Data, root: Path | str | None, folder: Path) -> dict:
        coder = self._coder(texts.train, data, root)
        coder.save(folder)
        arrays = {}
        for name in SPLITS:
            ids = list(_ids(getattr(texts, name), coder, data))
            lengths = np.array([len(one) for one in ids], np.int64)
            arrays |= _write_pairs(folder, name, np.uint16, lengths, ids)
        arrays |= _write_vocabulary(folder, coder.vocabulary)
        named = {"name": data.vocabulary, "entries": len(coder)}
        return {
            "schema": MANIFEST_SCHEMA,
            "dataset": self.name,
            "variant": texts.variant,
            "counts": texts.counts,
            "texts": texts.sha256,
            "vocabulary": named,
            "arrays": arrays,
        }

    def _coder(self, train: Split, data: Data, root: Path | str | None) -> Coder:
        if data.vocabulary == "own":
            texts = (_text(train, i, 0) for i in range(len(train)))
            return bpe.train(texts, data.size, special=bpe.SPECIALS)
        place = self.vocabulary_folder(root)
        coder = bpe.load(
            place,
            wanted="The vocabulary of facebook/bart-base",
            remedy="put its files there, or train a vocabulary on the articles with data.vocabulary=own.",
            special=bpe.SPECIALS[:3],
        )
        if len(coder) != data.size:
            raise UsageError(
                f"The settings have size={data.size:,}, but the vocabulary in {place} has "
                f"{len(coder):,}; put that of facebook/bart-base there ({BART:,}), or set data.size."
            )
        return coder


def load(data: Data | None = None, *, root: Path | str | None = None) -> Splits:
    """The splits: `multi_news.load(multi_news.Data(source=1024))`."""
    return MultiNews().load(data, root=root)


def joined(articles: Iterable[str]) -> str:
    """Articles as one text; empty ones are left out."""
    return f" {SEPARATOR} ".join(stripped for article in articles if (stripped := article.strip()))


def _ids(texts: Split, coder: Coder, data: Data) -> Iterator[np.ndarray]:
    """Articles and summary of every pair, one after the other."""
    begin, end = (np.array([one], np.uint16) for one in (coder.vocabulary.begin, coder.vocabulary.end))
    for first in range(0, len(texts), BATCH):
        rows = range(first, min(first + BATCH, len(texts)))
        articles, summaries = (coder.encode([_text(texts, i, column) for i in rows]) for column in (0, 1))
        for article, summary in zip(articles, summaries, strict=True):
            if data.layout == "paragen":
                yield np.concatenate([begin, article, end, end])[: data.source]
                yield np.concatenate([begin, summary, end])[: data.target + 1]
            else:
                yield np.concatenate([begin, article[: data.source - 2], end])
                yield np.concatenate([begin, summary[: data.target - 1], end])


def _text(texts: Split, i: int, column: int) -> str:
    return texts.tokens[texts.starts[i, column] : texts.stops[i, column]].tobytes().decode()


# Arrays


def _write_pairs(
    folder: Path, name: str, dtype: Any, lengths: np.ndarray, texts: Iterable[np.ndarray]
) -> dict[str, dict]:
    """Both texts of every pair, one after the other."""
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    contents = {
        f"{name}.tokens": (dtype, (int(edges[-1]),), texts),
        f"{name}.starts": (np.int64, edges.shape, [edges]),
    }
    return write_arrays(folder, contents)


def _pairs(arrays: Mapping[str, np.ndarray], name: str) -> Split:
    edges = np.asarray(arrays[f"{name}.starts"])
    starts, stops = edges[:-1].reshape(-1, 2), edges[1:].reshape(-1, 2)
    return Split(arrays[f"{name}.tokens"], starts, stops, np.zeros(len(starts), np.uint8))


def _joined(texts: Split, ids: Split, vocabulary: Vocabulary) -> Clusters:
    return Clusters(texts.tokens, texts.starts, texts.stops, texts.labels, ids, vocabulary)


def _write_vocabulary(folder: Path, vocabulary: Vocabulary) -> dict[str, dict]:
    pieces = [np.frombuffer(piece, np.uint8) for piece in vocabulary.pieces]
    edges = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64)])
    special = np.array([vocabulary.begin, vocabulary.pad, vocabulary.end])
    contents = {
        "vocabulary.pieces": (np.uint8, (int(edges[-1]),), pieces),
        "vocabulary.starts": (np.int64, edges.shape, [edges]),
        "vocabulary.special": (np.int64, special.shape, [special]),
    }
    return write_arrays(folder, contents)


def _vocabulary(arrays: Mapping[str, np.ndarray]) -> Vocabulary:
    pieces, edges = arrays["vocabulary.pieces"].tobytes(), np.asarray(arrays["vocabulary.starts"]).tolist()
    special = np.asarray(arrays["vocabulary.special"]).tolist()
    return Vocabulary(tuple(pieces[a:b] for a, b in pairwise(edges)), *special)


# Layouts

_SPELLINGS = {"train": ("train",), "valid": ("val", "valid", "validation"), "test": ("test",)}


def _find(source: Path) -> dict[str, tuple[Path, ...]]:
    """The files of every split: articles and summaries in two, or both in one."""
    for folder in (source, source / "data"):
        found = {split: _files(folder, names) for split, names in _SPELLINGS.items()}
        if all(found.values()):
            return found
        if any(found.values()):
            missing = ", ".join(split for split, files in found.items() if not files)
            raise DataMissing(f"{folder} has files of Multi-News, but none for {missing}; put those beside them.")
    raise DataMissing(
        f"{source} is no copy of Multi-News: it has neither train, val and test as .src (or "
        f".src.cleaned) and .tgt files, nor as .jsonl; get it from {MultiNews.meta.source}."
    )


def _files(folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    for name in names:
        for packed in ("", ".xz"):
            for ends in ((".src.cleaned", ".tgt"), (".src", ".tgt"), (".jsonl",)):
                files = tuple(folder / f"{name}{end}{packed}" for end in ends)
                if all(file.is_file() for file in files):
                    return files
    return ()


def _read(files: tuple[Path, ...]) -> Iterator[Pair]:
    return _read_lines(*files) if len(files) == 2 else _read_json(*files)


def _read_lines(articles: Path, summaries: Path) -> Iterator[Pair]:
    """One cluster per line in both files."""
    left, right = lines(articles), lines(summaries)
    for line, where in left:
        other, beside = next(right, (None, ""))
        if other is None:
            raise CorruptFile(f"{where} has no line in {summaries.name} that belongs to it; get both files again.")
        documents = _decoded(line, where).replace(LINE_BREAK, "\n").split(SEPARATOR)
        yield Pair(joined(documents), _decoded(other, beside).replace(LINE_BREAK, "\n").strip())
    if (extra := next(right, None)) is not None:
        raise CorruptFile(f"{extra[1]} has no line in {articles.name} that belongs to it; get both files again.")


def _read_json(path: Path) -> Iterator[Pair]:
    """One cluster per line, as {"documents": [...], "summary": ...}."""
    for line, where in lines(path):
        try:
            row = json.loads(_decoded(line, where))
        except ValueError as error:
            raise CorruptFile(f"{where}: not readable JSON ({error}); get the file again.") from error
        documents, summary = (row.get(name) if isinstance(row, dict) else None for name in ("documents", "summary"))
        if not (isinstance(documents, list) and all(isinstance(one, str) for one in documents)) or not isinstance(
            summary, str
        ):
            raise CorruptFile(f"{where}: expected documents (a list of texts) and summary, found {line!r:.80}.")
        articles = joined(document.replace(LINE_BREAK, "\n") for document in documents)
        yield Pair(articles, summary.replace(LINE_BREAK, "\n").strip())


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{where}: the text is not UTF-8 ({error.reason} at byte {error.start}).") from error
