"""A store: a folder of cards, one file each, that many processes and people may fill at once.

    store = Store("out/cards")
    store.add(card, files={"predictions": path})
    store.cards()                                # the newest card of every run; cards("probe"), cards("measurement")
    store.rows()                                 # what each of them is about, without reading those known before
    store.find(task="listops", tier="smoke")
    store.problems                               # files that are no sound cards, by name, with the reason

Nothing is ever overwritten or removed: a re-run of a cell adds a file, and the newer card supersedes the older one only
when the store is read, and only if both are of the same code and settings. A card appears after the files it names, in
one rename, so that a reader never sees half of it. A folder may mirror a bucket (`core/mirror.py`): what is added is
put there too, and what others have put there is fetched when the store is read.
"""

import contextlib
import gc
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from longspan.core import atomic, litter, mirror
from longspan.core.errors import CorruptFile, StorageError, UsageError, did_you_mean
from longspan.results import card as cards_module
from longspan.results import files as files_beside
from longspan.results.age import by_age, is_future
from longspan.results.card import Card
from longspan.results.code_identity import code_of, same_code
from longspan.results.index import FILTERS, MANY, Index, Row
from longspan.results.schema import SCHEMAS

BENCHMARKS = "benchmarks"  # a folder of this name holds tables of benchmarks, which are no cards
BATCH = 2**21  # bytes of cards that are decoded in one go


@dataclass(frozen=True)
class Problem:
    """A file in the store that could not be used, and why."""

    path: Path
    sentence: str


class Store:
    """The cards below a folder. The folder need not exist before the first `add`."""

    def __init__(self, folder: str | Path):
        self.folder = mirror.local(folder)
        self.problems: list[Problem] = []
        self._read: dict[str, Card] = {}  # what was validated and parsed just now, by its name in the folder

    def add(self, card: Mapping[str, Any], files: Mapping[str, str | Path] | None = None) -> Path:
        """Copy the files beside the card, put their names and hashes into it, seal it, write it; returns its path."""
        sources = {key: Path(source) for key, source in (files or {}).items()}
        sealed = cards_module.seal({"files": {}} | dict(card))
        cards_module.validate(sealed)
        hashes = {key: _digest(source) for key, source in sources.items()}
        litter.sweep(self.folder / cards_module.shelf(sealed))  # also if the card turns out to be there already
        for target in self._places(sealed):
            names = {key: _companion(target, key, source).name for key, source in sources.items()}
            final = _naming(sealed, names, hashes)
            if not target.exists():
                break
            if _holds(target, final):
                return target  # this card was added before
        with atomic.storage_errors(target), litter.announced(target):
            for key, source in sources.items():
                _copy(source, target.with_name(final["files"][key]))
            with mirror.unsent(target):
                cards_module.write(target, final)
                sent = _send(target, final)
        return target if sent else self.add(card, files)  # under another name

    def _exchange(self) -> None:
        """If the folder mirrors a bucket: send what a killed process did not send, and fetch the cards of others."""
        for path in mirror.never_sent(self.folder):
            if path.exists():
                with mirror.unsent(path):
                    _send(path, cards_module.read(path))
        mirror.pull_files(self.folder, lambda name: name.endswith(".json") and not name.startswith("."))

    def sweep(self) -> None:
        """Remove what killed processes left on the shelves: temporaries, and files of cards that never appeared."""
        for shelf in self.folder.iterdir() if self.folder.is_dir() else ():
            litter.sweep(shelf)

    def _places(self, card: Card) -> Iterator[Path]:
        """Paths for the card, best first. The name holds a hash, so a second one is needed only after damage."""
        name = Path(cards_module.filename(card))
        folder = self.folder / cards_module.shelf(card)
        yield folder / name
        for number in itertools.count(2):
            yield folder / f"{name.stem}-{number}.json"

    def entries(self, **wanted: Any) -> Iterator[tuple[Path, Card]]:
        """Every sound card with its path, in order of path; `problems` collects what is not sound.

        `wanted` filters by fields of the index (kind, task, mechanism, pattern, protocol, tier, seed) before reading.
        """
        yield from self._cards(row for row in self._rows() if _row_matches(row, wanted))

    def cards(self, kind: str = "run", *, superseded: bool = False) -> list[Card]:
        """The newest card of every cell of one kind, oldest first; with `superseded`, all of them."""
        with _uncollected():
            return by_age(card for _, card in self._cards(self.rows(kind, superseded=superseded)))

    def rows(self, kind: str = "run", *, superseded: bool = False) -> list[Row]:
        """What these cards are about, oldest first too: task, mechanism, pattern, protocol, tier, seed, date and file.

        Only files that are new or have changed are read, so that listing many is fast.
        """
        _known_kind(kind)
        rows = [row for row in self._rows() if row.kind == kind]
        return sorted(rows if superseded else _newest_rows(rows), key=_age)

    def find(self, *, kind: str = "run", **filters: Any) -> list[Card]:
        """Cards of one kind whose fields equal the filters; a set, list or tuple means any of its values.

        >>> Store("nowhere").find(task="listops", seed=[0, 1])
        []
        """
        known = _known_kind(kind)["properties"]
        for name in filters:
            if name not in known:
                raise UsageError(f"Cards of kind {kind} have no field {name!r}.{did_you_mean(name, known)}")
        early = {name: filters.pop(name) for name in FILTERS if name in filters and name != "kind"}
        rows = [row for row in self._rows() if row.kind == kind and _row_matches(row, early)]
        with _uncollected():  # these fields are part of a cell, so that filtering first keeps the same newest cards
            return by_age(card for _, card in self._cards(_newest_rows(rows)) if _all_match(card, filters))

    def _rows(self) -> list[Row]:
        """Every sound card as its row of the index, in order of path; only files that are new to it are read."""
        self.problems, self._read = [], {}
        self._exchange()
        names = _card_files(self.folder)
        index = Index(self.folder, kept=len(names) >= MANY)
        found = []
        for name in names:
            row = self._checked(name, index)
            if row.problem is None:
                found.append(row)
            else:
                self.problems.append(Problem(self.folder / name, row.problem))
        index.save(set(names))
        return found

    def _checked(self, name: str, index: Index) -> Row:
        """The row of a file, which is read unless it is unchanged since it was checked."""
        try:
            state = os.stat(os.path.join(self.folder, name))  # making a Path takes longer than the stat
            if (row := index.row(name, state)) is not None:
                return row
            card = cards_module.read(self.folder / name)
        except CorruptFile as error:
            return index.note(name, state, str(error))
        except (OSError, UsageError):  # gone, or a link to nothing
            problem = f"{os.path.basename(name)}: the file vanished or links to nothing."
            return Row(name, 0, 0, 0, 0, problem=problem)
        row = index.note(name, state, card)
        self._read[name] = card
        return row

    def _cards(self, rows: Iterable[Row]) -> Iterator[tuple[Path, Card]]:
        """The cards of rows, without validating them again; a file that has just changed is read again.

        Many are decoded in one go, so that the names of their fields are created once.
        """
        for some in _batches(rows):
            texts = {row.name: text for row in some if row.name not in self._read and (text := self._text(row))}
            read = dict(zip(texts, _decoded(list(texts.values())), strict=False))
            for row in some:
                card = self._read.pop(row.name, None) or read.get(row.name) or self._card_now(row.name)
                if card is not None:
                    yield self.folder / row.name, card

    def _text(self, row: Row) -> bytes | None:
        """The bytes of a file if they are those that were checked: its stat is taken after reading."""
        try:
            with open(os.path.join(self.folder, row.name), "rb", buffering=0) as file:
                text = file.read()
                return text if row.is_of(os.fstat(file.fileno())) else None
        except OSError:
            return None

    def _card_now(self, name: str) -> Card | None:
        """The card of a file that is no longer the one that was checked."""
        path = self.folder / name
        try:
            return cards_module.read(path)
        except (CorruptFile, UsageError) as error:
            self.problems.append(Problem(path, f"{path.name}: changed while the cards were read ({error})."))
            return None


def _card_files(folder: Path) -> list[str]:
    """The names of all files below a folder that may be cards, relative to it, in order of path."""
    found = []
    for place, folders, files in os.walk(folder):
        within = os.path.relpath(place, folder) if place != str(folder) else ""
        if BENCHMARKS in within.split(os.sep):
            continue
        own = (name for name in (*files, *folders) if name.endswith(".json") and not name.startswith("."))
        found += [os.path.join(within, name) for name in own]
    return sorted(found, key=lambda name: name.split(os.sep))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in batches of about BATCH bytes."""
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += row.size
        if size >= BATCH:
            yield some
            some, size = [], 0
    yield some


def _decoded(texts: list[bytes]) -> list[Card]:
    """The cards in texts that were validated before; an empty list if one does not parse after all."""
    try:
        found = json.loads(b"[" + b",".join(texts) + b"]")
    except ValueError:
        return []
    return found if len(found) == len(texts) else []


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector, which would traverse all cards again and again while more of them are read.

    What was read then moves to the oldest generation, so that the collector does not traverse it at once.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if collected:
            gc.enable()


def _newest_rows(rows: Iterable[Row]) -> list[Row]:
    """`newest` for cards of which only the rows are known."""
    chosen: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_age, reverse=True):
        newer = chosen.setdefault(row.cell, [])
        if not any(other.code == row.code or same_code(*map(json.loads, (row.code, other.code))) for other in newer):
            newer.append(row)
    return [row for group in chosen.values() for row in group]


def _age(row: Row) -> tuple[bool, datetime, str]:
    return not is_future({"created": row.created}), datetime.fromisoformat(row.created), row.sha256


def newest(cards: Iterable[Card]) -> list[Card]:
    """One card per cell and code, the one created last, in order of creation.

    Fingerprints of code are compared with a tolerance, so code is compared within a cell instead of being part of it.
    """
    chosen: dict[tuple, list[Card]] = {}
    for card in reversed(by_age(cards)):
        newer = chosen.setdefault(cards_module.cell(card), [])
        if not any(same_code(code_of(card), code_of(other)) for other in newer):
            newer.append(card)
    return by_age(card for group in chosen.values() for card in group)


def _known_kind(kind: str) -> dict[str, Any]:
    """The schema of a kind."""
    if kind not in SCHEMAS:
        raise UsageError(f"No cards of kind {kind!r}.{did_you_mean(kind, SCHEMAS)}")
    return SCHEMAS[kind]


def _all_match(card: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    return all(_matches(card[name], wanted) for name, wanted in filters.items())


def _row_matches(row: Row, filters: Mapping[str, Any]) -> bool:
    return all(_matches(getattr(row, name), wanted) for name, wanted in filters.items())


def _matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, set | frozenset | list | tuple) else value == wanted


def _naming(card: Card, names: Mapping[str, str], hashes: Mapping[str, str]) -> Card:
    """The card with the names and hashes of its files, and a new seal."""
    content = {key: value for key, value in card.items() if key != "sha256"} | {"files": card["files"] | dict(names)}
    if hashes:
        content["files_sha256"] = card.get("files_sha256", {}) | dict(hashes)
    return cards_module.seal(content)


def _holds(path: Path, card: Card) -> bool:
    """Whether a file holds exactly this card; one that cannot be read does not."""
    try:
        return cards_module.read(path) == card
    except CorruptFile:
        return False


def _companion(card_path: Path, key: str, source: Path) -> Path:
    """Where a file of a card goes: `<card>.predictions.npz`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", key) or not re.fullmatch(r"(\.[A-Za-z0-9]{1,16})?", source.suffix):
        raise UsageError(f"A file of a card needs a plain key and suffix, got {key!r} for {source.name!r}.")
    return card_path.with_name(f"{card_path.stem}.{key}{source.suffix}")


def _digest(source: Path) -> str:
    if not source.is_file():
        raise StorageError(f"The card names {source}, but there is no such file; keep it until the card is stored.")
    return files_beside.digest(source)


def _send(path: Path, card: Card) -> bool:
    """Put a card into the bucket that its folder mirrors, after its files; False where another card has its name."""
    for name in card["files"].values():
        mirror.push(path.with_name(name))
    if mirror.push_new(path):
        return True
    path.unlink()
    mirror.pull(path)
    return False


def _copy(source: Path, target: Path) -> None:
    with atomic.temporary_beside(target) as temporary:
        shutil.copyfile(source, temporary)
