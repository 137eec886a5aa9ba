"""Atomic writes: a reader sees the old content or the new one, never a mixture."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from longspan.core import readable_json
from longspan.core.errors import StorageError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, rename over it."""
    with temporary_beside(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: object) -> None:
    write_text(path, readable_json.dumps(content, sort_keys=True, ensure_ascii=True) + "\n")


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to `path` if the block succeeds and removed if it fails."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            _flush(temporary)
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def replace_folder(finished: Path, target: Path) -> None:
    """Move a finished folder to `target`; an existing one is deleted only after the move."""
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        if target.exists():
            os.replace(target, old / "content")
        os.replace(finished, target)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Report a full disk or a folder without write permission in one sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {path} ({error.strerror or error}); free some space or choose a writable folder."
        ) from error


def _flush(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
