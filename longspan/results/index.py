"""An index of a store: which files were found to be sound cards, and what each is about.

    index = Index(folder)
    row = index.row(name, stat)          # None unless the file is still the one that was checked
    index.note(name, stat, card)         # or the sentence that says why it is no card
    index.save()

A row vouches for a file as long as its size, inode and times are what they were when it was checked, so that of 50,000
cards only the new ones are validated and only those asked for are parsed. The index lies in the user's cache, never
beside the cards: one that came with a stranger's cards could vouch for anything. It is a SQLite file, so that several
processes may write it; a damaged one is rebuilt.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from longspan.core.cache import cache_folder
from longspan.core.version import VERSION
from longspan.results import card as cards
from longspan.results.card import Card
from longspan.results.code_identity import code_of
from longspan.results.schema import SCHEMAS

LAYOUT = "3"  # rows of another layout, in columns, in their meaning or in what was checked, are ignored
MANY = 100  # from this many files on, the index is kept on disk
FRESH = 2.0  # seconds within which two changes of a file may leave the same timestamp
WAIT = 10.0  # seconds for another process to write


class Row(NamedTuple):
    """What the index knows of a file: how to tell it is unchanged, why it is no card, or what the card is about."""

    name: str
    size: int
    modified: int
    changed: int
    inode: int
    problem: str | None = None
    kind: str | None = None
    task: str | None = None
    mechanism: str | None = None
    pattern: str | None = None
    protocol: str | None = None
    tier: str | None = None
    seed: int | None = None
    created: str = ""
    sha256: str = ""
    cell: str = ""  # a hash of `cards.cell`
    code: str = "{}"  # `code_of`, as JSON

    def is_of(self, found: os.stat_result) -> bool:
        same = (self.size, self.modified, self.changed, self.inode)
        return same == (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


T = TypeVar("T")
FILTERS = ("kind", "task", "mechanism", "pattern", "protocol", "tier", "seed")
_COLUMNS = ", ".join(Row._fields)
_TABLE = f"CREATE TABLE IF NOT EXISTS files ({_COLUMNS.replace('name', 'name PRIMARY KEY', 1)}) WITHOUT ROWID"
_INSERT = f"INSERT OR REPLACE INTO files VALUES ({', '.join('?' * len(Row._fields))})"


class Index:
    """Rows of the files below a folder, by their name relative to it; unless `kept`, nothing is saved."""

    def __init__(self, folder: Path, *, kept: bool = True):
        self.folder, self.kept = folder, kept
        self.path = cache_folder() / "index" / f"{_digest(str(folder.resolve()), _rules())[:32]}.sqlite"
        self.rows = self._read() if kept else {}
        self._new: list[Row] = []

    def row(self, name: str, found: os.stat_result) -> Row | None:
        """The row of a file that has not changed since it was checked."""
        row = self.rows.get(name)
        return row if row is not None and row.is_of(found) else None

    def note(self, name: str, found: os.stat_result, what: Card | str) -> Row:
        """Note what was found in a file; `found` is its stat from before it was read. Saved unless it is quite new."""
        identity = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        about: dict[str, Any] = {"problem": what} if isinstance(what, str) else _about(what)
        row = Row(name, *identity, **about)
        if time.time() - max(found.st_mtime, found.st_ctime) > FRESH:
            self._new.append(row)
        return row

    def save(self, names: set[str] | None = None) -> None:
        """Write the new rows; given the names of all existing files, rows of others are dropped."""
        gone = [] if names is None else [(name,) for name in self.rows.keys() - names]
        if not self.kept or not (self._new or gone):
            return

        def write(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM files WHERE name = ?", gone)
            database.executemany(_INSERT, self._new)
            database.commit()

        self._ask(write, None)
        self.rows |= {row.name: row for row in self._new}
        self._new = []

    def _read(self) -> dict[str, Row]:
        question = f"SELECT {_COLUMNS} FROM files"
        return self._ask(lambda database: {row[0]: Row._make(row) for row in database.execute(question)}, {})

    def _ask(self, what: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The result of a query; `otherwise` if the database is unavailable or damaged. A damaged one is removed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)) as database:
                database.execute(_TABLE)
                return what(database)
        except OSError:  # no cache here, or no room in it
            return otherwise
        except sqlite3.DatabaseError as error:
            if not _is_passing(error):
                print(
                    f"The index of {self.folder} was damaged ({error}); it is made anew.", file=sys.stderr, flush=True
                )
                with contextlib.suppress(OSError):
                    self.path.unlink(missing_ok=True)
            return otherwise


def _is_passing(error: sqlite3.DatabaseError) -> bool:
    """Whether the index itself may be sound: another process is writing for long, or nothing can be written here."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
    )


def _about(card: Card) -> dict[str, Any]:
    """The columns of a card; a probe names its run in its `subject` instead, so most of its columns stay empty."""
    said = {name: card[name] for name in FILTERS if name in card}
    code = json.dumps(code_of(card), sort_keys=True)
    return said | {
        "created": card["created"],
        "sha256": card["sha256"],
        "cell": _digest(*map(str, cards.cell(card))),
        "code": code,
    }


def _rules() -> str:
    """A hash of the rules by which cards were validated: rows written under other rules are not used."""
    return _digest(LAYOUT, VERSION, json.dumps(SCHEMAS, sort_keys=True), *map(str, (cards.MAX_BYTES, cards.MAX_DEPTH)))


def _digest(*words: str) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
