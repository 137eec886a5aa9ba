"""Tar and zip archives read as a stream, member by member; untrusted, and without unpacking the rest.

    for member in members("lra_release.gz", ["listops-1000/basic_val.tsv"]):
        content = member.read()

Refused, with the name of the member: files without a name, absolute names and `..`, links that are wanted or point
outside the archive, devices, sparse files, wanted names that occur twice, and sizes above LARGEST (one member), TOTAL
(everything, unpacked), HEADER and LONGEST_NAME.
"""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import posixpath
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import IO, Any

from longspan.core.download import transfer_bar
from longspan.core.errors import CorruptFile, DataMissing, LongspanError, UsageError, shortened
from longspan.core.remote import Body, Remote, Source, ask, readable

LARGEST = 16 << 30
TOTAL = 64 << 30
HEADER = 1 << 16  # bytes of an extended header: a long name, attributes
LONGEST_NAME = 4_096  # characters
GLOBAL_ATTRIBUTES = 1_000  # that a tar archive declares for all of its members; tarfile copies them for each
Wanted = Collection[str] | Callable[[str], bool]
Entries = Generator[tuple[str, int, Callable[[], IO[bytes]]], None, None]  # name, size and opener of every file


class Member(io.RawIOBase):
    """A file inside an archive, readable until the next member is requested. `name` is its full path there."""

    def __init__(self, name: str, size: int, file: IO[bytes], where: str):
        super().__init__()
        self.name, self.size, self.file, self.where = name, size, file, where
        self.rest = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        content = self._take(len(view))
        view[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._take(1 << 20), b""))

    def _take(self, size: int) -> bytes:
        assert not self.closed, f"{self.name} was read after the next member had been asked for"
        with _corruption(f"{_shown(self.name)} in {self.where}"):
            content = self.file.read(min(size, self.rest or 1))  # at the end too, where checksums are compared
            if size and bool(content) != bool(self.rest):
                raise EOFError(
                    f"{self.rest} of {self.size} bytes are missing" if self.rest else "it is longer than told"
                )
            self.rest -= len(content)
            return content


def members(archive: Path | str | IO[bytes], wanted: Wanted, *, where: str = "the stream") -> Iterator[Member]:
    """The wanted members of an archive (a path, or a stream of a tar, compressed or not), in archive order.

    `wanted` is a collection of names, each the end of one member's path: reading stops when all are found, and a
    missing one is an error. Or it is a function from a member's path to True or False.
    """
    if isinstance(archive, (str, Path)):
        path = Path(archive)
        try:
            handle = path.open("rb")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DataMissing(f"There is no archive {path}; check the name.") from error
        with handle:
            kind = _kind(handle.peek(8))
            yield from _chosen(_zip(handle, str(path)) if kind == "zip" else _tar(handle, str(path)), wanted, str(path))
        return
    yield from _chosen(_tar(archive, where), wanted, where)


def stream(source: Source | Remote, wanted: Wanted, *, progress: bool = True) -> Iterator[Member]:
    """The wanted members of a tar archive straight from the network; nothing is stored on disk."""
    remote = ask(source) if isinstance(source, Source) else source
    with transfer_bar(remote.source.filename, remote.size, show=progress) as heard, Body(remote, heard=heard) as body:
        yield from members(io.BufferedReader(body, 1 << 20), wanted, where=remote.source.address)


def _chosen(entries: Entries, wanted: Wanted, where: str) -> Iterator[Member]:
    """Open the wanted members, once each, and stop when all names are found."""
    names = set() if callable(wanted) else {name.strip("/") for name in wanted}
    taken: set[str] = set()
    with contextlib.closing(entries):
        for name, size, open_it in entries:
            if callable(wanted):
                asked = name if wanted(name) else None
            else:
                asked = next((end for end in _endings(name) if end in names), None)
            if asked is None:
                continue
            if asked in taken:
                twice = f"{_shown(asked)} twice (again as {_shown(name)})"
                raise CorruptFile(f"{where} holds {twice}; it is not what was published.")
            if size > LARGEST:
                raise CorruptFile(
                    f"{_shown(name)} in {where} claims {readable(size)}, more than the {readable(LARGEST)} that are "
                    "accepted; it is not what was published."
                )
            taken.add(asked)
            with _corruption(f"{_shown(name)} in {where}"):
                member = Member(name, size, open_it(), where)
            yield member
            member.close()
            if taken == names:
                return
    if names - taken:
        absent = ", ".join(sorted(names - taken))
        raise DataMissing(f"{where} has no {absent}; check that it is the right archive.")


def _endings(name: str) -> Iterator[str]:
    """`a/b/c`, `b/c`, `c`."""
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name


def _tar(file: IO[bytes], where: str) -> Entries:
    """Name, size and opener of every file in a tar archive, compressed or not; all checksums are verified."""
    with _corruption(where):
        unpacked = _Unpacked(file, where)
        tar = tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header, encoding="utf-8")  # type: ignore[call-overload]  # noqa: SIM115
    while True:
        with _corruption(where):
            info = tar.next()
        tar.members = []  # tarfile would keep a description of every member, gigabytes in the large archives
        if info is None:
            break
        name = _safe(info.name, where, folder=info.isdir())
        if info.issym() or info.islnk():
            target = info.linkname if info.islnk() else posixpath.join(posixpath.dirname(name), info.linkname)
            _safe(posixpath.normpath(target), where, f"{_shown(name)}, a link to ", folder=True)
            yield name, 0, lambda name=name: _no_link(name, where)
        elif info.isfile():
            yield name, info.size, lambda info=info: tar.extractfile(info)  # type: ignore[misc]
        elif not info.isdir():
            raise CorruptFile(f"{where} holds {_shown(name)}, which is a device or a pipe and not a file; refused.")
    with _corruption(where):
        unpacked.finish()


def _zip(file: IO[bytes], where: str) -> Entries:
    with _corruption(where):
        opened = zipfile.ZipFile(file)
    with opened:
        total = sum(info.file_size for info in opened.infolist())
        if total > TOTAL:
            raise _too_large(where)
        for info in opened.infolist():
            folder = info.filename.endswith("/")
            name = _safe(info.filename, where, folder=folder)
            if stat.S_ISLNK(info.external_attr >> 16):
                yield name, 0, lambda name=name: _no_link(name, where)
            elif not folder:
                if info.flag_bits & 1:
                    raise CorruptFile(f"{_shown(name)} in {where} is encrypted; unpack it yourself.")
                yield name, info.file_size, lambda info=info: _opened(opened, info)


def _opened(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile unpacks others without a limit
        raise NotImplementedError(f"method {info.compress_type}, where only 0 and 8 are")
    return archive.open(info)


def _safe(name: str, where: str, what: str = "", *, folder: bool = False) -> str:
    """A member's name, normalised; refused if it points outside the archive, or is missing for a file."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or (len(name) > 1 and name[1] == ":"):
        raise CorruptFile(f"{where} holds {what}{_shown(name)!r}, which points outside the archive; refused.")
    if len(name) > LONGEST_NAME:
        raise CorruptFile(f"{where} holds {what}{_shown(name)!r}, a name of {len(name):,} characters; refused.")
    safe = "/".join(part for part in parts if part not in ("", "."))
    if not (safe or folder):
        raise CorruptFile(f"{where} holds a file without a name ({what}{_shown(name)!r}); refused.")
    return safe


def _shown(name: str) -> str:
    """A name that is safe to quote in a message: short and printable."""
    return shortened(name if name.isprintable() else ascii(name)[1:-1])


def _no_link(name: str, where: str) -> IO[bytes]:
    raise CorruptFile(f"{_shown(name)} in {where} is a link and not a file; refused.")


class _Header(tarfile.TarInfo):
    """A header that is valid or refused: tarfile treats a damaged or missing one, after the first, as the end."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the block of zeros that ends an archive
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}, where a header or the end mark should be") from error

    def _proc_member(self, tar):
        if self.size < 0:
            raise tarfile.ReadError(f"a header claims {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file")
        if self.type in _EXTENSIONS and self.size > HEADER:  # tarfile holds these in memory
            raise tarfile.ReadError(f"a header claims {readable(self.size)}")
        return super()._proc_member(tar)  # type: ignore[misc]

    def _proc_pax(self, tar):
        """Records that are well-formed or refused: tarfile needs quadratic time for others."""
        stream = tar.fileobj
        content = stream.read(self._block(self.size))  # type: ignore[attr-defined]
        if len(content) < self.size:
            raise tarfile.ReadError("it ends within a header")
        _check_records(content[: self.size])
        if len(tar.pax_headers) > GLOBAL_ATTRIBUTES:
            raise tarfile.ReadError("a header declares thousands of attributes")
        tar.fileobj = _Again(content, stream)
        try:
            return super()._proc_pax(tar)  # type: ignore[misc]
        finally:
            tar.fileobj = stream


def _check_records(content: bytes) -> None:
    """Refuse attributes that are not of the form `length name=value` and those of sparse files."""
    if b"GNU.sparse" in content:
        raise tarfile.ReadError("a sparse file")
    if re.search(rb"[0-9]{300}", content):
        raise tarfile.ReadError("an attribute with hundreds of digits")
    place = 0
    while place < len(content):
        begin = re.compile(rb"([0-9]{1,6}) [^=]").match(content, place)
        record = content[place : place + int(begin[1])] if begin else b""
        if not begin or not record.endswith(b"\n") or b"=" not in record or len(record) != int(begin[1]):
            raise tarfile.ReadError("an attribute that is not of the form length name=value")
        place += len(record)


class _Again:
    """A stream whose last piece can be read again."""

    def __init__(self, piece: bytes, stream: Any):
        self.piece, self.stream = piece, stream

    def read(self, size: int) -> bytes:
        if not self.piece:
            return self.stream.read(size)
        piece, self.piece = self.piece[:size], self.piece[size:]
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_EXTENSIONS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


class _Unpacked:
    """The tar inside gzip, bzip2, xz or nothing, for tarfile to read. Unlike tarfile, it verifies the checksums."""

    def __init__(self, file: IO[bytes], where: str):
        if not hasattr(file, "peek"):
            file = io.BufferedReader(file)  # type: ignore[arg-type]
        kind = _kind(file.peek(8))  # type: ignore[attr-defined]
        if kind in ("zip", "zstd"):
            told = "cannot be read as a stream" if kind == "zip" else "cannot be read here"
            raise UsageError(f"{where} is a {kind} archive, which {told}; name an unpacked folder instead.")
        openers: dict[str, Callable[[Any], Any]] = {"gzip": _gunzip, "bzip2": bz2.BZ2File, "xz": lzma.LZMAFile}
        self.file = openers[kind](file) if kind in openers else file
        self.where, self.total = where, 0

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.total += len(content)
        if self.total > TOTAL:
            raise _too_large(self.where)
        return content

    def finish(self) -> None:
        """Read to the end, so that the last checksum is verified."""
        while self.read(1 << 20):
            continue


def _gunzip(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="rb")


def _kind(begin: bytes) -> str:
    magic = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip", b"(\xb5/\xfd": "zstd"}
    return next((kind for start, kind in magic.items() if begin.startswith(start)), "tar")


def is_archive(path: Path | str) -> bool:
    """Whether the file starts like an archive: compressed or zip by its first bytes, plain tar by its header."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        if _kind(handle.peek(8)) != "tar":
            return True
        try:
            tarfile.TarInfo.frombuf(handle.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:  # type: ignore[attr-defined]
            return False
        return True


def _too_large(where: str) -> CorruptFile:
    return CorruptFile(
        f"{where} unpacks to more than the {readable(TOTAL)} that are accepted; it is not what was published."
    )


@contextlib.contextmanager
def _corruption(what: str) -> Iterator[None]:
    """Report everything that a damaged archive can raise in one sentence."""
    try:
        yield
    except LongspanError:
        raise
    except NotImplementedError as error:
        raise CorruptFile(f"{what} has a compression that cannot be read ({error}); unpack it yourself.") from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk; an impossible offset is one of the content
        told = shortened(" ".join(str(error).split()), 200)
        raise CorruptFile(f"{what} is damaged or cut short ({told}); get the archive again.") from error


_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, struct.error)
_DAMAGE += (RuntimeError, ValueError, OverflowError, MemoryError)  # by tarfile and zipfile, for impossible headers
