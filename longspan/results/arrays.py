"""Arrays of an untrusted `.npz`: nothing in it is executed, and nothing is allocated that the file does not hold.

    found = read(path, "label", "prediction")      # arrays of finite numbers, or CorruptFile
    everything(path)                               # all arrays in it
    everything(path, LIMITS, text=True)            # of a smaller file, texts among them

Headers are matched against the one form NumPy writes, and the shape they state against the bytes that follow. Never
imports torch.
"""

import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longspan.core import mirror
from longspan.core.errors import CorruptFile

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 2**30  # of a file, and of its unpacked size, unless the caller sets a lower limit
MAX_LETTERS = 2_000  # of a text in an array of texts
MAX_MEMBERS = 64
MAX_DIMENSIONS = 8
MAX_DIRECTORY = 2**16  # bytes of the list of members

_END = struct.Struct("<4s4H2LH")  # the end of a ZIP file without a comment
_ZIP64 = b"PK\x06\x07"
_MAGIC = re.compile(rb"\x93NUMPY(?:\x01\x00(..)|[\x02\x03]\x00(....))", re.DOTALL)
_MAX_HEADER = 4096
_HEADER = re.compile(
    r"\{'descr': '(?P<dtype>[<>|=]?[A-Za-z?]\d*(?:\[\w+\])?)', "
    r"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>(?:\d{1,18}, ?)*(?:\d{1,18})?)\), \}\s*"
)
_KINDS = {"b": "truth values", "c": "complex numbers", "O": "objects", "S": "text", "U": "text", "V": "raw bytes"}
_KINDS |= {"M": "dates", "m": "time spans", "?": "truth values"}
_UNREADABLE = (
    *(OSError, EOFError, ValueError, RuntimeError, OverflowError),  # RuntimeError: encrypted, or an unknown method
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def names_in(path: Path) -> set[str]:
    """The arrays that a file holds."""
    with _opened(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def read(path: Path, *names: str, text: bool = False) -> list["np.ndarray"]:
    """These arrays; every entry is a finite number or, with `text`, a text."""
    with _opened(path) as archive:
        return [_array(archive, path, name, text=text) for name in names]


def everything(path: Path, most_bytes: int = MAX_BYTES, *, text: bool = False) -> dict[str, "np.ndarray"]:
    """All arrays in the file by name, if they take at most `most_bytes`; with `text`, arrays of texts too."""
    with _opened(path, most_bytes) as archive:
        names = sorted(name.removesuffix(".npy") for name in archive.namelist())
        return {name: _array(archive, path, name, text=text) for name in names}


def _opened(path: Path, most_bytes: int = MAX_BYTES) -> zipfile.ZipFile:
    """The archive, if it is no more than a small list of arrays."""
    mirror.pull(path)
    try:
        _check_directory(path, most_bytes)
        archive = zipfile.ZipFile(path)
    except _UNREADABLE as error:
        raise CorruptFile(f"{path.name}: no readable archive ({error}).") from None
    members = archive.infolist()
    names = [member.filename for member in members]
    fault = None
    if len(set(names)) != len(names):
        fault = "holds two members of one name"
    elif any(not re.fullmatch(r"\w{1,100}\.npy", name) for name in names):
        fault = "holds members that are not arrays"
    elif any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        fault = "is compressed in a way NumPy does not write"
    elif (unpacked := sum(member.file_size for member in members)) > most_bytes:
        fault = f"unpacks to {unpacked} bytes, more than such a file can need"
    if fault is not None:
        archive.close()
        raise CorruptFile(f"{path.name}: {fault}.")
    return archive


def _check_directory(path: Path, most_bytes: int) -> None:
    """Refuse an overlong list of members before reading it."""
    size = path.stat().st_size
    if not path.is_file() or not _END.size <= size <= most_bytes:
        raise ValueError(f"{size} bytes")
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - 20))
        tail = file.read()
    signature, *_, count, directory, _, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or comment or tail.startswith(_ZIP64):
        raise ValueError("not a ZIP file as NumPy writes it")
    if count > MAX_MEMBERS or directory > MAX_DIRECTORY:
        raise ValueError(f"{count} members")


def _array(archive: zipfile.ZipFile, path: Path, name: str, *, text: bool = False) -> "np.ndarray":
    """One array of numbers or, with `text`, of texts; read only if its header agrees with its size."""
    import numpy as np

    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise CorruptFile(f"{path.name}: no array {name!r}.") from None
    try:
        with archive.open(entry) as member:
            dtype, shape, order, start = _header(member, text)
            count = math.prod(shape)
            if start + count * dtype.itemsize != entry.file_size:
                raise ValueError(f"its header says {count} entries, the file has {entry.file_size} bytes")
            content = member.read(entry.file_size)
            if len(content) != count * dtype.itemsize or member.read(1):
                raise ValueError("it ends early")
    except _UNREADABLE as error:
        raise CorruptFile(f"{path.name}: no readable array {name!r} ({error}).") from None
    values = np.frombuffer(content, dtype)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise CorruptFile(f"{path.name}: {name} holds numbers that are NaN or infinite.")
    if dtype.kind == "U" and not _is_unicode(np.frombuffer(content, np.dtype("u4").newbyteorder(dtype.byteorder))):
        raise CorruptFile(f"{path.name}: {name} holds text that is not Unicode.")
    return values.reshape(shape, order=order)


def _is_unicode(letters: "np.ndarray") -> bool:
    """Whether all of these are valid code points, which surrogates are not."""
    return not ((letters > 0x10FFFF) | ((letters >= 0xD800) & (letters <= 0xDFFF))).any()


def _header(member: Any, text: bool) -> tuple["np.dtype", tuple[int, ...], Literal["C", "F"], int]:
    """The dtype, shape, memory order and offset of the data; ValueError if it is not an array of the allowed types."""
    import numpy as np

    start = member.read(8)
    start += member.read(2 if start[6:7] == b"\x01" else 4)
    if not (magic := _MAGIC.fullmatch(start)):
        raise ValueError("it is no array")
    length = int.from_bytes(magic[1] or magic[2], "little")
    if length > _MAX_HEADER:
        raise ValueError(f"its header has {length} bytes")
    header = _HEADER.fullmatch(member.read(length).decode("latin-1"))
    if header is None:
        raise ValueError("it is not an array of numbers")
    word = header["dtype"].lstrip("<>|=")
    letters = int(word[1:]) if text and re.fullmatch(r"U\d{1,9}", word) else None
    if letters is not None and not 1 <= letters <= MAX_LETTERS:
        raise ValueError(f"its texts have up to {letters} letters")
    if letters is None and word not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
        raise ValueError(f"it holds {_KINDS.get(word[0], word)}, not numbers")
    shape = tuple(int(digits) for digits in re.findall(r"\d+", header["shape"]))
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"it has {len(shape)} dimensions")
    return np.dtype(header["dtype"]), shape, "F" if header["fortran"] == "True" else "C", len(start) + length
