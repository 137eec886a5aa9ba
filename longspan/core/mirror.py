"""Folders of this machine that mirror a shared store: what is in one of them is also in the bucket, or soon will be.

    out = local("s3://bucket/out")               # a folder in the cache; a path is itself
    address_of(out)                              # "s3://bucket/out"
    push(out / "cards" / "a.json")               # nothing for a path that mirrors no bucket

All code works on plain files, and calls this where many machines must see them. Cards are never changed, so that a copy
is as good as the original; checkpoints are pushed when they are saved and pulled by the process that continues the run.
"""

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from longspan.core.atomic import folder_beside, remove, write_text
from longspan.core.bucket import Bucket, is_address, open_bucket
from longspan.core.cache import cache_folder

ADDRESS = ".address"  # in a folder that mirrors a bucket: which one
UNSENT = ".unsent"  # suffix of the hidden file that marks a file beside it as not in the bucket yet


def local(place: str | Path) -> Path:
    """The folder where a place is worked on: a path itself, or for an address a folder in this user's cache."""
    if not is_address(place):
        return Path(place)
    address = str(place).rstrip("/")
    open_bucket(address)  # refuses one that cannot be opened, before anything is done
    words = re.sub(r"[^A-Za-z0-9]+", "-", address).strip("-")[-60:]
    folder = _stores() / f"{words}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
    if not (folder / ADDRESS).exists():
        write_text(folder / ADDRESS, address)
    return folder


def address_of(folder: str | Path) -> str | None:
    """The address that a folder mirrors, itself or through a folder above it."""
    found = _bucket_of(Path(folder))
    return None if found is None else "/".join(filter(None, (found[0].address, found[1])))


def everywhere(place: str | Path) -> str:
    """A place as other machines know it: an address, or the absolute path."""
    return str(place) if is_address(place) else address_of(place) or str(Path(place).absolute())


def in_bucket(path: Path) -> tuple[Bucket, str] | None:
    """The bucket and the object name that a path mirrors; None for a plain path."""
    return _bucket_of(path)


def push(path: Path) -> None:
    """Put a file into the bucket."""
    if (found := _bucket_of(path)) is not None:
        found[0].put(found[1], path)


def push_new(path: Path) -> bool:
    """Put a file that must not replace another into the bucket; False where another is in its place."""
    found = _bucket_of(path)
    return True if found is None else found[0].create(found[1], path.read_bytes())


def push_folder(folder: Path, last: str) -> None:
    """Put all files of a folder into the bucket, the one called `last` after the others."""
    if _bucket_of(folder) is not None:
        for path in sorted(folder.rglob("*"), key=lambda path: (path.name == last, path)):
            if path.is_file():
                push(path)


def pull(path: Path) -> None:
    """Fetch a file that is in the bucket and not here."""
    if not path.exists() and (found := _bucket_of(path)) is not None:
        found[0].fetch(found[1], path)


def pull_folder(folder: Path, last: str) -> None:
    """Fetch a folder that was pushed with `last` at the end, unless it is here: all of it or nothing."""
    found = _bucket_of(folder)
    if found is None or (folder / last).exists():
        return
    bucket, name = found
    names = bucket.sizes(name)
    if f"{name}/{last}" not in names:
        return
    with folder_beside(folder) as temporary:
        for one in names:
            bucket.fetch(one, temporary / one.removeprefix(f"{name}/"))


def pull_files(folder: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Fetch the files below a folder that are in the bucket and not here, or here with another size."""
    if (found := _bucket_of(folder)) is None:
        return
    bucket, under = found
    for name, size in bucket.sizes(under).items():
        path = folder / name.removeprefix(f"{under}/")
        if wanted(path.name) and not (path.exists() and path.stat().st_size == size):
            bucket.fetch(name, path)


def drop(paths: Iterable[Path]) -> None:
    """Remove files from the bucket; local copies stay."""
    for path in paths:
        if (found := _bucket_of(path)) is not None:
            found[0].remove(found[1])


def drop_folder(folder: Path) -> None:
    """Remove everything below a folder from the bucket except leases, which their holders remove."""
    if (found := _bucket_of(folder)) is not None:
        for name in found[0].sizes(found[1]):
            if not name.endswith(".lease"):
                found[0].remove(name)


@contextlib.contextmanager
def unsent(path: Path):
    """Note on disk that a file is about to be put into the bucket, in case this process is killed."""
    if _bucket_of(path) is None:
        yield
        return
    note = path.with_name(f".{path.name}{UNSENT}")
    write_text(note, path.name)
    yield
    remove(note)


def never_sent(folder: Path) -> list[Path]:
    """Files below a folder that a killed process, or one that could not reach the store, did not put into it."""
    notes = folder.rglob(f".*{UNSENT}") if _bucket_of(folder) is not None else ()
    return [note.with_name(note.name[1 : -len(UNSENT)]) for note in notes]


def _stores() -> Path:
    return cache_folder() / "stores"


def _bucket_of(path: Path) -> tuple[Bucket, str] | None:
    path, stores = path.absolute(), _stores()
    if not path.is_relative_to(stores) or path == stores:
        return None
    top, *below = path.relative_to(stores).parts
    address = _address(stores / top)
    return None if address is None else (open_bucket(address), "/".join(below))


@functools.cache
def _address(folder: Path) -> str | None:
    return (folder / ADDRESS).read_text().strip() if (folder / ADDRESS).exists() else None
