"""Downloads that are resumed and verified; a file is complete or absent. On urllib, since pooch cannot resume.

`fetch` creates `<name>` only if size and digests match. Until then the bytes are in `<name>.part`, which the next call
resumes; a file with a wrong digest becomes `<name>.bad`, so that it is not resumed. Size and digests are recorded in
`<name>.lock.json`: where no digest is published, later downloads must match it.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from longspan.core.atomic import storage_errors, write_bytes, write_json
from longspan.core.errors import CorruptFile, StorageError
from longspan.core.lock import only_one
from longspan.core.remote import Body, Remote, Source, ask, readable

PIECE = 1 << 20


def fetch(source: Source, folder: Path | str, *, progress: bool = True) -> Path:
    """The file in `folder`, downloaded if it is not there, and verified in either case.

    >>> fetch(Source("https://data.example/x.tar.gz", "x.tar.gz", size=84_125_825, md5="7c2a..."), "out/data/downloads")
    ... # doctest: +SKIP
    """
    path = Path(folder) / source.filename
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(path.with_name(f".{path.name}.busy"), f"the download of {path}"):
            if path.exists():
                _verify(path, path, source, None)
            else:
                _download(source, path, progress)
    return path


def _download(source: Source, path: Path, progress: bool) -> None:
    remote = ask(source)
    if source.size is not None and remote.size is not None and source.size != remote.size:
        raise CorruptFile(
            f"{source.filename} should have {source.size:,} bytes, but {source.address} offers {remote.size:,}: it is "
            f"another file. Get the published one elsewhere and run: longspan data import {source.dataset} PATH"
        )
    part, note = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.origin")
    origin = json.dumps([remote.size, remote.validator]).encode()
    recognised = remote.validator or source.md5 or source.sha256  # else nothing tells two editions of a file apart
    there = part.stat().st_size if recognised and part.exists() and _content(note) == origin else 0
    size = source.size if remote.size is None else remote.size
    if size is not None and there > size:
        there = 0
    need_room(path, None if size is None else size - there)
    write_bytes(note, origin)
    if there == 0 or there != size:
        try:
            _write(remote, part, there, progress)
        except CorruptFile:  # no later call can use what arrived
            part.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
            raise
    _verify(part, path, source, remote)
    os.replace(part, path)
    note.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _write(remote: Remote, part: Path, there: int, progress: bool) -> None:
    """Append what is missing to the unfinished file; from the start if the server cannot send parts."""
    with (
        transfer_bar(remote.source.filename, remote.size, show=progress) as heard,
        Body(remote, there, heard) as body,
        part.open("r+b" if there else "wb") as handle,
    ):
        handle.truncate(body.position)
        handle.seek(body.position)
        heard(body.position)
        while piece := body.read(PIECE):
            handle.write(piece)
        handle.flush()
        os.fsync(handle.fileno())


def _verify(file: Path, path: Path, source: Source, remote: Remote | None) -> None:
    """Compare a complete file with the published digests, the server's, and those of the first download."""
    lock = path.with_name(f"{path.name}.lock.json")
    seen = digests(file)
    expected = [("published", {"size": source.size, "md5": source.md5, "sha256": source.sha256})]
    if remote is not None:
        expected.append(("announced by the server", {"size": remote.size, "md5": remote.md5}))
    if not (source.md5 or source.sha256) and lock.exists():
        first = f"seen at the first download ({lock.name}; remove it if the file was meant to change)"
        expected.append((first, _read(lock)))
    for by_whom, known in expected:
        for name in seen:
            if known.get(name) not in (None, seen[name]):
                raise _mismatch(file, path, source, f"{name} {known[name]}, {by_whom}", f"{name} {seen[name]}")
    if not lock.exists():
        write_json(lock, {"url": source.url} | seen)


def _mismatch(file: Path, path: Path, source: Source, expected: str, found: str) -> CorruptFile:
    if file == path:
        advice = "remove it and run the command again."
    else:
        bad = path.with_name(f"{path.name}.bad")
        os.replace(file, bad)
        path.with_name(f"{path.name}.part.origin").unlink(missing_ok=True)
        advice = f"it is kept as {bad.name} and the next attempt starts from the beginning."
    return CorruptFile(f"{path} from {source.address} should have {expected}, found {found}; {advice}")


def _read(lock: Path) -> dict:
    try:
        content = json.loads(lock.read_text())
    except ValueError as error:
        raise CorruptFile(f"{lock} is not readable JSON ({error}); remove it to accept the next download.") from error
    if not isinstance(content, dict):
        raise CorruptFile(f"{lock} should hold size and digests of a file; remove it to accept the next download.")
    return content


def digests(path: Path) -> dict[str, int | str]:
    """Size, md5 and sha256 of a file, read once."""
    size, md5, sha256 = 0, hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as handle:
        while piece := handle.read(PIECE):
            size += len(piece)
            md5.update(piece)
            sha256.update(piece)
    return {"size": size, "md5": md5.hexdigest(), "sha256": sha256.hexdigest()}


def need_room(path: Path, size: int | None) -> None:
    """Refuse a download that does not fit on the disk, before the first byte."""
    free = shutil.disk_usage(path.parent).free
    if size is not None and size > free:
        raise StorageError(
            f"{path.name} needs {readable(size)} in {path.parent}, where {readable(free)} are free; free some, or set "
            "LONGSPAN_DATA to another folder."
        )


@contextlib.contextmanager
def transfer_bar(title: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; yields the function to call with the number of new bytes."""
    if not (show and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from longspan.core.screen import Screen

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Screen(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
