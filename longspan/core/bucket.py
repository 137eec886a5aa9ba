"""A shared store that is not a disk: objects under an address that fsspec knows, such as s3://bucket/folder.

    bucket = Bucket("s3://bucket/folder")
    bucket.create("cards/a.json", content)        # False if it exists already: of two that create it one succeeds
    bucket.put("runs/x/checkpoint.pt", path)      # whole or absent, never half
    bucket.sizes("cards")                         # {"cards/a.json": 812}

Requests to an unreachable store are retried for two minutes, then it is a storage error, like a full disk. On S3 and
Google's stores `create` is decided by the server. Where fsspec has no such request, it looks first: two that create
the same object at the same moment may then both believe that they did. Needs fsspec, and s3fs for S3: the extra `s3`.
"""

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from longspan.core.atomic import temporary_beside
from longspan.core.errors import StorageError, UsageError

T = TypeVar("T")
PATIENCE = 120.0  # seconds for which requests to an unreachable store are retried
PAUSE = 1.0  # seconds before the second try, then twice as many each time
LONGEST_PAUSE = 10.0
ONE_REQUEST = 8 * 2**20  # bytes that are sent at once; more are sent in parts, which appear together at the end
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+")
FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError)  # errors that a retry does not change


def is_address(place: object) -> bool:
    """Whether this is an address rather than a path.

    >>> is_address("s3://bucket/x"), is_address("out"), is_address("C:/out")
    (True, False, False)
    """
    return isinstance(place, str) and _ADDRESS.fullmatch(place) is not None


def open_bucket(address: str) -> "Bucket":
    """The bucket at an address, one for each process: a forked child cannot use that of its parent."""
    return _opened(address, os.getpid())


@functools.cache
def _opened(address: str, process: int) -> "Bucket":
    return Bucket(address)


class Bucket:
    """Objects by their names below an address."""

    def __init__(self, address: str):
        self.address = address.rstrip("/")
        self.files, self.root = _file_system(self.address)

    def create(self, name: str, content: bytes) -> bool:
        """Put an object unless there is one; returns whether this process did, even if the first response was lost."""
        try:
            self._try(name, lambda path: self.files.pipe_file(path, content, mode="create"))
        except FileExistsError:
            return self.get(name) == content
        return True

    def put(self, name: str, content: bytes | Path) -> None:
        """Put an object, replacing any; readers see all of it or the previous one."""
        if isinstance(content, Path) and content.stat().st_size > ONE_REQUEST:
            self._try(name, lambda path: self.files.put_file(str(content), path))
        else:
            whole = content.read_bytes() if isinstance(content, Path) else content
            self._try(name, lambda path: self.files.pipe_file(path, whole))

    def get(self, name: str) -> bytes | None:
        """The content of an object; None where there is none."""
        try:
            return self._try(name, self.files.cat_file)
        except FileNotFoundError:
            return None

    def fetch(self, name: str, path: Path) -> bool:
        """Write an object into a file, whole or not at all; False where there is none."""
        try:
            with temporary_beside(path) as temporary:
                self._try(name, lambda place: self.files.get_file(place, str(temporary)))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def sizes(self, under: str) -> dict[str, int]:
        """The bytes of every object below a name."""
        found = self._try(under, lambda path: self.files.find(path, detail=True))
        start = len(self.root) + 1
        return {self.files._strip_protocol(name)[start:]: int(facts["size"]) for name, facts in found.items()}

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._try(name, self.files.rm_file)

    def _try(self, name: str, do: Callable[[str], T]) -> T:
        """Do something with an object, with retries while the store cannot be reached."""
        deadline, pause, told = time.monotonic() + PATIENCE, PAUSE, False
        while True:
            try:
                self.files.invalidate_cache()
                return do(f"{self.root}/{name}")
            except FINAL:
                raise
            except _failures() as error:
                why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                if time.monotonic() + pause > deadline:
                    sentence = f"Cannot reach {self.address}/{name} ({why}); see whether the store is there."
                    raise StorageError(sentence) from error
                if not told:
                    print(f"{self.address} cannot be reached ({why}); trying again.", file=sys.stderr, flush=True)
                told = True
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _file_system(address: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise UsageError(f"{address} needs fsspec, which is not installed; pip install 'longspan[s3]'.") from None
    try:
        files, root = fsspec.url_to_fs(address, use_listings_cache=False)
    except ValueError as error:
        raise UsageError(f"{address} is no address for fsspec ({error}); name one such as s3://bucket/x.") from None
    except ImportError as error:
        raise UsageError(f"{address} needs another package ({error}); pip install 'longspan[s3]' for S3.") from None
    return files, str(root).rstrip("/")


@functools.cache
def _failures() -> tuple[type[BaseException], ...]:
    """Errors that may be temporary: those of the network and of the store."""
    try:
        from botocore.exceptions import BotoCoreError  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return (OSError,)
    return (OSError, BotoCoreError)
