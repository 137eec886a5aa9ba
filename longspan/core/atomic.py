"""Atomic writes: a reader sees the old content or the new one, never a mixture.

Temporaries are hidden files and folders called `.<name>.<machine>.<random>.part` or `.old`, locked by their process
while it lives; `litter.sweep` removes those that a killed process left.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from longspan.core import readable_json
from longspan.core.errors import StorageError
from longspan.core.machine import tag


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
    with storage_errors(path), hidden(path, ".part") as temporary:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)


@contextlib.contextmanager
def folder_beside(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """A folder to fill, moved to `target` if the block succeeds and removed if it fails.

    Without `replace` a folder that has appeared there in the meantime stays.
    """
    with storage_errors(target), hidden(target, ".part", folder=True) as temporary:
        temporary.chmod(0o755)
        yield temporary
        if replace:
            replace_folder(temporary, target)
        elif not target.exists():
            temporary.rename(target)


def replace_folder(finished: Path, target: Path) -> None:
    """Move a finished folder to `target`; an existing one is deleted only after the move.

    After a crash between the two renames `litter.sweep` puts the old one back.
    """
    with storage_errors(target), hidden(target, ".old", folder=True) as old:
        if target.exists():
            os.replace(target, old / "content")
        try:
            os.replace(finished, target)
        except OSError:
            if (old / "content").exists():
                os.replace(old / "content", target)
            raise


@contextlib.contextmanager
def hidden(path: Path, suffix: str, *, folder: bool = False) -> Iterator[Path]:
    """A new hidden file or folder beside `path`, locked inside the block and gone after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        if folder:
            temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.{tag()}.", suffix=suffix, dir=path.parent))
        else:
            handle, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.{tag()}.", suffix=suffix, dir=path.parent)
            os.close(handle)
            temporary = Path(name)
        with locked(temporary) as held:
            if held is False:
                continue  # another process removed it as litter before it was locked
            try:
                yield temporary
            finally:
                remove(temporary)
            return


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Lock a file or a folder, so that others see that its process is alive; the lock of a killed process is released.

    True if the lock is held; False if another process holds it, or nothing is there; None if locks are unsupported.
    """
    try:
        import fcntl
    except ImportError:
        yield None
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = _is_at(handle, path)
        except BlockingIOError:
            held = False
        except OSError:  # a disk without locks
            held = None
        yield held
    finally:
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
