"""The files of a speech corpus: LJSpeech's layout, in a folder or in an archive, and what may be beside it.

metadata.csv             id|raw text|normalised text, UTF-8, no header; quotation marks are literal
wavs/<id>.wav            or clips/<id>.ogg (.wav, .flac), mono
clips.tsv                optional, with columns `id` and `split` (train, valid, test) and perhaps `sha256`
lexicon_extra.tsv        optional, word<tab>phones; also lexicon.tsv
ljspeech_mfa.zip         optional, here or beside: <id>.TextGrid; also a folder TextGrid
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from longspan.core.archive import members
from longspan.core.errors import CorruptFile, DataMissing
from longspan.core.lines import lines
from longspan.datasets.base import SPLITS
from longspan.datasets.speech.features import Clip
from longspan.datasets.speech.phonemes import read_lexicon, unspeakable

TEXTGRIDS = "ljspeech_mfa.zip"
LARGEST_CLIP = 64 << 20  # bytes
_TABLES = ("metadata.csv", "clips.tsv", "lexicon_extra.tsv", "lexicon.tsv")
_CLIP = re.compile(r"(?:.*/)?(?:wavs|clips)/([A-Za-z0-9_][A-Za-z0-9_.-]*)\.(?:wav|ogg|flac)")
_TEXTGRID = re.compile(r"(?:.*/)?([A-Za-z0-9_][A-Za-z0-9_.-]*)\.TextGrid")
_LJSPEECH = re.compile(r"LJ(\d{3})-\d{4}")
_BOOKS = {"001": "test", "002": "test", "003": "valid"}


@dataclass(frozen=True)
class Line:
    """A line of metadata.csv: the clip and what is said in it, as read aloud."""

    id: str
    text: str


@dataclass
class Copy:
    """A user's copy of a corpus. Its tables are known once all of its clips have been read."""

    path: Path
    voice: bool = True  # whether pitch and energy are wanted
    textgrids: dict[str, bytes] = field(default_factory=dict)
    tables: dict[str, bytes] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)  # of every clip

    def clips(self) -> Iterator[Clip]:
        """All sound files, in the order in which they are stored."""
        for name, content in _files(self.path):
            base = name.rpartition("/")[2]
            if base in _TABLES:
                self.tables.setdefault(base, content)
            elif found := _CLIP.fullmatch(name):
                if found[1] in self.sha256:
                    raise CorruptFile(f"{self.path} has the clip {found[1]} twice; keep one of the two.")
                self.sha256[found[1]] = hashlib.sha256(content).hexdigest()
                official = _LJSPEECH.fullmatch(found[1]) is not None
                where = f"{self.path}, {name}"
                yield Clip(found[1], content, where, official, self.textgrids.get(found[1]), self.voice)
        if "metadata.csv" not in self.tables:
            raise DataMissing(
                f"{self.path} is no copy of LJSpeech: it has no metadata.csv with wavs/*.wav or clips/*.ogg beside it; "
                "get LJSpeech-1.1.tar.bz2, or name a folder in its layout."
            )

    def lines(self) -> list[Line]:
        """The lines of metadata.csv, each of which has a clip."""
        found = read_metadata(self.tables["metadata.csv"], f"{self.path}, metadata.csv")
        absent = [line.id for line in found if line.id not in self.sha256]
        if absent:
            raise DataMissing(
                f"{self.path} has no clip {absent[0]}, which metadata.csv lists ({len(absent):,} of {len(found):,} are "
                "missing); put the sound files there, or remove their lines."
            )
        return found

    def lexicon(self) -> dict[str, str]:
        """Pronunciations that lie beside the data."""
        found: dict[str, str] = {}
        for name in ("lexicon.tsv", "lexicon_extra.tsv"):
            if name in self.tables:
                found |= read_lexicon(_decoded(self.tables[name], f"{self.path}, {name}"))
        return found

    def splits(self, found: Iterable[Line]) -> tuple[dict[str, str], str]:
        """The split of every clip, and the rule that decided it."""
        listed = list(found)
        if "clips.tsv" in self.tables:
            return self._listed(listed), "clips.tsv"
        books = {line.id: match for line in listed if (match := _LJSPEECH.fullmatch(line.id))}
        if len(books) == len(listed):
            return {name: _BOOKS.get(match[1], "train") for name, match in books.items()}, "book prefix"
        return {line.id: by_hash(line.text) for line in listed}, "hash of the normalised text"

    def _listed(self, listed: list[Line]) -> dict[str, str]:
        rows = _decoded(self.tables["clips.tsv"], f"{self.path}, clips.tsv")
        header, where = next(rows, ("", f"{self.path}, clips.tsv"))
        columns = header.split("\t")
        if not {"id", "split"} <= set(columns):
            raise CorruptFile(f"{where}: expected the columns id and split, found {header!r:.80}; mend it.")
        splits: dict[str, str] = {}
        for row, where in rows:
            values = dict(zip(columns, row.split("\t"), strict=False))
            name, split, digest = (values.get(column) for column in ("id", "split", "sha256"))
            if name is None or split not in SPLITS:
                raise CorruptFile(f"{where}: expected a clip and its split, found {row!r:.80}; mend the line.")
            if digest and name in self.sha256 and digest != self.sha256[name]:
                raise CorruptFile(f"{where}: the clip {name} is another file than listed; get it again.")
            splits[name] = split
        absent = [line.id for line in listed if line.id not in splits]
        if absent:
            raise CorruptFile(f"{self.path}, clips.tsv has no line for the clip {absent[0]}; add it.")
        return splits


def by_hash(text: str) -> Literal["train", "valid", "test"]:
    """The split of a text in a corpus that has none: the same for all takes of a sentence, 8 % each valid and test."""
    place = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 100
    return "test" if place < 8 else "valid" if place < 16 else "train"


def read_metadata(content: bytes, where: str) -> list[Line]:
    """The lines of metadata.csv, split at `|` alone."""
    found: dict[str, Line] = {}
    for row, place in _decoded(content, where):
        parts = row.removesuffix("\r").split("|")
        if len(parts) != 3 or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", parts[0]):
            raise CorruptFile(f"{place}: expected id|text|normalised text, found {row!r:.80}; mend the line.")
        name, _, text = parts
        if name in found:
            raise CorruptFile(f"{place}: the clip {name} is listed twice; remove one of the lines.")
        if not re.search("[A-Za-z]", text):
            raise CorruptFile(
                f"{place}: the clip {name} has no words ({text!r:.40}); write what is said, or remove it."
            )
        if unknown := unspeakable(text):
            raise CorruptFile(f"{place}: no rule pronounces {unknown[:10]!r}; write the normalised text in words.")
        found[name] = Line(name, text)
    if not found:
        raise CorruptFile(f"{where} has no lines; get it again.")
    return list(found.values())


def read_textgrids(path: Path) -> dict[str, bytes]:
    """The TextGrids that belong to a copy, by clip: in an archive or a folder inside it or beside it."""
    places = [path, path.parent] if path.is_dir() else [path.parent]
    for place in places:
        if (archive := place / TEXTGRIDS).is_file():
            matching = members(archive, lambda name: _TEXTGRID.fullmatch(name) is not None)
            return {_TEXTGRID.fullmatch(one.name)[1]: one.read() for one in matching}  # type: ignore[index]
    for folder in (path / "TextGrid", path / "textgrids") if path.is_dir() else ():
        if folder.is_dir():
            return {file.name.removesuffix(".TextGrid"): file.read_bytes() for file in folder.rglob("*.TextGrid")}
    return {}


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Tables and clips of a folder, tables first, or of an archive, in its order."""
    if path.is_file():
        for member in members(path, _is_wanted):
            if member.size > LARGEST_CLIP:
                raise CorruptFile(f"{path} holds {member.name:.80} of {member.size:,} bytes; no clip is so large.")
            yield member.name, member.read()
        return
    inside = sorted(path.glob("*/metadata.csv"))
    root = path if (path / "metadata.csv").is_file() or len(inside) != 1 else inside[0].parent
    for file in [root / name for name in _TABLES] + sorted(root.glob("wavs/*")) + sorted(root.glob("clips/*")):
        name = file.relative_to(root).as_posix()
        if file.is_file() and _is_wanted(name):
            if file.stat().st_size > LARGEST_CLIP:
                raise CorruptFile(f"{file} has {file.stat().st_size:,} bytes; no clip is so large.")
            yield name, file.read_bytes()


def clips_in(path: Path) -> int:
    """How many sound files a folder has, for the progress bar; 0 for an archive, which is read once."""
    return sum(1 for name in ("wavs", "clips") for _ in path.glob(f"**/{name}/*")) if path.is_dir() else 0


def _is_wanted(name: str) -> bool:
    return name.rpartition("/")[2] in _TABLES or _CLIP.fullmatch(name) is not None


def _decoded(content: bytes, where: str) -> Iterator[tuple[str, str]]:
    """The lines of a table in UTF-8 that are not empty, each with its place."""
    for line, place in lines(io.BytesIO(content), where):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise CorruptFile(
                f"{place}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8."
            ) from error
        if text.strip():
            yield text, place
