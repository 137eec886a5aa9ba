"""Which files and network addresses code accesses, as reported by the interpreter's audit events."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

CODE = {".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib"}  # loading code is not reading data
SYSTEM = ("/proc/", "/sys/", "/dev/")

_watching: ContextVar[list[str] | None] = ContextVar("watching", default=None)
_installed = False


@contextmanager
def reading() -> Iterator[list[str]]:
    """The names of files opened and addresses contacted inside the block, in order of first access.

    >>> with reading() as read:
    ...     _ = [1, 2, 3]
    >>> read
    []
    """
    global _installed
    if not _installed:  # an audit hook cannot be removed; this one does nothing outside the block
        sys.addaudithook(_note)
        _installed = True
    found: list[str] = []
    token = _watching.set(found)
    try:
        yield found
    finally:
        _watching.reset(token)


def _note(event: str, details: tuple[Any, ...]) -> None:
    found = _watching.get()
    if found is None:
        return
    if event == "open" and isinstance(details[0], (str, bytes)):
        name = details[0] if isinstance(details[0], str) else details[0].decode(errors="replace")
        written = (
            Path(name).with_suffix("") if Path(name).suffix[1:].isdigit() else Path(name)
        )  # a.pyc.1234, until renamed
        if written.suffix not in CODE and not name.startswith(SYSTEM) and not Path(name).is_dir():
            _once(found, Path(name).name)
    elif event == "socket.connect":
        _once(found, str(details[1]))


def _once(found: list[str], what: str) -> None:
    if what not in found:
        found.append(what)
