"""What killed processes leave behind: temporaries and replaced folders, removed or put back by the next one.

Nothing of a live process is touched: it holds a lock on what it is writing. Locks of another machine may not be seen
here, so what it left is removed an hour later.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from longspan.core.atomic import hidden, locked, remove
from longspan.core.machine import LONG_AGO, seconds_since_written, tag

_NAME = re.compile(r"\.(?P<of>.+?)(?:\.(?P<machine>m[0-9a-f]{8}))?\.[a-z0-9_]{8}\.(?P<kind>part|old|adding)")
_CARD = re.compile(r"[^./][^/]*\.json")


def sweep(folder: Path) -> None:
    """Remove what killed writes left in a folder, and put back a folder whose replacement was cut short."""
    with contextlib.suppress(OSError):  # not there, or not ours to read
        found = [(path, match) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        for path, match in found:
            if match["machine"] in (None, tag()) or seconds_since_written(path) > LONG_AGO:
                _clear(path, match["kind"], folder / match["of"])


def _clear(path: Path, kind: str, target: Path) -> None:
    lost = kind == "old" and not target.exists()  # perhaps right now: then wait for its process
    with contextlib.suppress(OSError), locked(path, wait=lost) as held:  # a read-only disk keeps its litter
        if held is not True:
            return
        if kind == "old" and not target.exists() and (path / "content").exists():
            (path / "content").rename(target)
        if kind == "adding" and _CARD.fullmatch(name := path.read_text(errors="replace")):
            _remove_companions(path.with_name(name))
        remove(path)


@contextlib.contextmanager
def announced(card: Path) -> Iterator[None]:
    """Note on disk that files are being put beside a card that is written last; without the card they are litter."""
    with hidden(card, ".adding") as note:
        note.write_text(card.name)
        try:
            yield
        finally:
            _remove_companions(card)


def _remove_companions(card: Path) -> None:
    """Remove files named after a card that never appeared."""
    if not card.exists():
        for path in card.parent.iterdir():
            if path.name.startswith(f"{card.stem}."):
                remove(path)
