"""What a model answered for each test example: arrays of an untrusted `.npz`, and the score they give.

    found = read(path, "label", "prediction")      # one-dimensional arrays of finite numbers, or CorruptFile

Nothing in the file is executed, and nothing is allocated that the file does not hold: headers are matched against the
one form NumPy writes, and their shape against the bytes that follow. Never imports torch.
"""

import hashlib
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.core.errors import CorruptFile

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 2**30  # of a file, and of what it unpacks to
MAX_MEMBERS = 64
MAX_DIRECTORY = 2**16  # bytes of the list of members
LARGEST_LOSS = 345.0  # nats; e^345 is the largest perplexity below the largest number a card may hold

_END = struct.Struct("<4s4H2LH")  # the end of a ZIP file without a comment
_ZIP64 = b"PK\x06\x07"
_MAGIC = re.compile(rb"\x93NUMPY(?:\x01\x00(..)|[\x02\x03]\x00(....))", re.DOTALL)
_MAX_HEADER = 4096
_HEADER = re.compile(
    r"\{'descr': '(?P<dtype>[<>|=]?[A-Za-z?]\d*(?:\[\w+\])?)', "
    r"'fortran_order': (?:True|False), 'shape': \((?P<shape>(?:\d{1,18}, ?)*(?:\d{1,18})?)\), \}\s*"
)
_KINDS = {"b": "truth values", "c": "complex numbers", "O": "objects", "S": "text", "U": "text", "V": "raw bytes"}
_KINDS |= {"M": "dates", "m": "time spans", "?": "truth values"}
_UNREADABLE = (
    *(OSError, EOFError, ValueError, RuntimeError, OverflowError),  # RuntimeError: encrypted, or an unknown method
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def labels_digest(labels: "np.ndarray") -> str:
    """The SHA-256 of class labels in the order of rows, as little-endian 64-bit integers."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(labels, dtype="<i8").tobytes()).hexdigest()


def names_in(path: Path) -> set[str]:
    """The arrays that a file holds."""
    with _opened(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def read(path: Path, *names: str) -> list["np.ndarray"]:
    """These arrays, of one dimension and one length, every entry of them a finite number."""
    with _opened(path) as archive:
        arrays = [_array(archive, path, name) for name in names]
    for name, values in zip(names, arrays, strict=True):
        if len(values) != len(arrays[0]) or not len(values):
            raise CorruptFile(
                f"{path.name}: {names[0]} has {len(arrays[0])} entries and {name} has {len(values)}; "
                "each needs one for every row."
            )
    return arrays


def whole_numbers(path: Path, name: str, values: "np.ndarray") -> "np.ndarray":
    """The array as signed integers of 64 bits."""
    if values.dtype.kind not in "iu" or values.max() > 2**63 - 1:
        raise CorruptFile(f"{path.name}: {name} must hold integers of at most 64 bits, found {values.dtype}.")
    return values.astype("int64")


def in_row_order(path: Path, arrays: list["np.ndarray"]) -> list["np.ndarray"]:
    """The arrays sorted by the `row` of each entry, which must be 0, 1, 2, ... in some order; as they are without."""
    import numpy as np

    if "row" not in names_in(path):
        return arrays
    (row,) = read(path, "row")
    row = whole_numbers(path, "row", row)
    order = np.argsort(row, kind="stable")
    if len(row) != len(arrays[0]) or not np.array_equal(row[order], np.arange(len(row))):
        raise CorruptFile(f"{path.name}: row must name each of {len(arrays[0])} rows once.")
    return [values[order] for values in arrays]


def labels_and_answers(path: Path) -> list["np.ndarray"]:
    """`label` and `prediction` in the order of rows."""
    label, prediction = read(path, "label", "prediction")
    return in_row_order(path, [whole_numbers(path, "label", label), whole_numbers(path, "prediction", prediction)])


def score_of(path: Path, metric: str) -> tuple[float, int, int] | None:
    """A score recomputed: its value, its count, and the number of rows; None where rows have no share of it.

    An accuracy comes from `label` and `prediction`, a perplexity from the `nats` and the `tokens` of each row, any
    other mean from an array of its name.
    """
    import numpy as np

    present = names_in(path)
    if metric == "accuracy":
        label, prediction = labels_and_answers(path)
        return float(np.mean(label == prediction)), len(label), len(label)
    if metric == "perplexity":
        if not {"nats", "tokens"} <= present:
            return None
        nats, tokens = read(path, "nats", "tokens")
        nats, tokens = in_row_order(path, [nats, whole_numbers(path, "tokens", tokens)])
        if tokens.min() < 0 or tokens.max() > (2**63 - 1) // len(tokens) or not tokens.any():
            raise CorruptFile(f"{path.name}: tokens must be counts of at least 0, and some row must have one.")
        count = int(tokens.sum())
        return math.exp(min(_sum(path, "nats", nats) / count, LARGEST_LOSS)), count, len(tokens)
    if metric not in present:
        return None
    (values,) = in_row_order(path, read(path, metric))
    return _sum(path, metric, values) / len(values), len(values), len(values)


def _sum(path: Path, name: str, values: "np.ndarray") -> float:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.astype(np.float64).sum())
    if not math.isfinite(total):
        raise CorruptFile(f"{path.name}: {name} adds up to more than a number can be.")
    return total


# ------------------------------------------------------------------------------------------------------ untrusted bytes


def _opened(path: Path) -> zipfile.ZipFile:
    """The archive, if it is no more than a small list of arrays."""
    try:
        _check_directory(path)
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
    elif (unpacked := sum(member.file_size for member in members)) > MAX_BYTES:
        fault = f"unpacks to {unpacked} bytes, more than predictions can need"
    if fault is not None:
        archive.close()
        raise CorruptFile(f"{path.name}: {fault}.")
    return archive


def _check_directory(path: Path) -> None:
    """Refuse a list of members that is too long before it is read."""
    size = path.stat().st_size
    if not path.is_file() or not _END.size <= size <= MAX_BYTES:
        raise ValueError(f"{size} bytes")
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - 20))
        tail = file.read()
    signature, *_, count, directory, _, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\x05\x06" or comment or tail.startswith(_ZIP64):
        raise ValueError("not a ZIP file as NumPy writes it")
    if count > MAX_MEMBERS or directory > MAX_DIRECTORY:
        raise ValueError(f"{count} members")


def _array(archive: zipfile.ZipFile, path: Path, name: str) -> "np.ndarray":
    """One array of numbers, read only if its header agrees with its size."""
    import numpy as np

    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise CorruptFile(f"{path.name}: no array {name!r}.") from None
    try:
        with archive.open(entry) as member:
            dtype, count, start = _header(member)
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
    return values


def _header(member: Any) -> tuple["np.dtype", int, int]:
    """The type, the number of entries and the place of the first byte; ValueError for what is no row of numbers."""
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
    if word not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
        raise ValueError(f"it holds {_KINDS.get(word[0], word)}, not numbers")
    shape = [int(digits) for digits in re.findall(r"\d+", header["shape"])]
    if len(shape) != 1:
        raise ValueError(f"it has {len(shape)} dimensions, not one")
    return np.dtype(header["dtype"]), shape[0], len(start) + length
