"""A store: a folder of cards, one file each, that many processes and people may fill at once.

    store = Store("out/cards")
    store.add(card, files={"predictions": path})
    store.cards()                                # the newest card of every run; cards("probe"), cards("measurement")
    store.find(task="listops", tier="smoke")
    store.problems                               # files that are no sound cards, by name, with the reason

Nothing is ever overwritten or removed: a re-run of a cell adds a file, and the newer card supersedes the older one only
when the store is read, and only if both are of the same code and settings. A card appears after the files it names, in
one rename, so that a reader never sees half of it.
"""

import itertools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.core import atomic, litter
from longspan.core.errors import CorruptFile, StorageError, UsageError, did_you_mean
from longspan.results import card as cards_module
from longspan.results import files as files_beside
from longspan.results.age import by_age
from longspan.results.card import Card
from longspan.results.code_identity import code_of, same_code
from longspan.results.schema import SCHEMAS

BENCHMARKS = "benchmarks"  # a folder of this name holds tables of benchmarks, which are no cards


@dataclass(frozen=True)
class Problem:
    """A file in the store that could not be used, and why."""

    path: Path
    sentence: str


class Store:
    """The cards below a folder. The folder need not exist before the first `add`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.problems: list[Problem] = []

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
            return cards_module.write(target, final)

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

    def entries(self) -> Iterator[tuple[Path, Card]]:
        """Every sound card of any kind with its path, in order of path; `problems` collects what is not sound."""
        self.problems = []
        for path in sorted(self.folder.rglob("*.json")):
            if path.name.startswith(".") or BENCHMARKS in path.relative_to(self.folder).parts[:-1]:
                continue
            try:
                yield path, cards_module.read(path)
            except CorruptFile as error:
                self.problems.append(Problem(path, str(error)))
            except UsageError:  # gone, or a link to nothing
                self.problems.append(Problem(path, f"{path.name}: the file vanished or links to nothing."))

    def cards(self, kind: str = "run", *, superseded: bool = False) -> list[Card]:
        """The newest card of every cell of one kind, oldest first; with `superseded`, all of them."""
        _known_kind(kind)
        everything = (card for _, card in self.entries() if card["kind"] == kind)
        return by_age(everything) if superseded else newest(everything)

    def find(self, *, kind: str = "run", **filters: Any) -> list[Card]:
        """Cards of one kind whose fields equal the filters; a set, list or tuple means any of its values.

        >>> Store("nowhere").find(task="listops", seed=[0, 1])
        []
        """
        known = _known_kind(kind)["properties"]
        for name in filters:
            if name not in known:
                raise UsageError(f"Cards of kind {kind} have no field {name!r}.{did_you_mean(name, known)}")
        return [card for card in self.cards(kind) if all(_matches(card[name], want) for name, want in filters.items())]


def newest(cards: Iterable[Card]) -> list[Card]:
    """One card per cell and code, the one created last, in order of creation.

    Fingerprints of code are compared with a tolerance, so that code is compared within a cell and is no part of it.
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


def _copy(source: Path, target: Path) -> None:
    with atomic.temporary_beside(target) as temporary:
        shutil.copyfile(source, temporary)
