"""Arrays on disk: `.npy` files written in chunks, hashed while being written, and read as memory maps."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from longspan.core.errors import DataDamaged


def write_array(path: Path, dtype: Any, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> dict:
    """Write the chunks as one array, which is never in memory as a whole; returns its manifest entry.

    Plain writes and not a memory map, because a full disk then raises an error instead of killing the process.
    """
    dtype = np.dtype(dtype)
    digest, written = hashlib.sha256(), 0
    with path.open("wb") as handle:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)
        handle.flush()
        digest.update(path.read_bytes())
        for piece in pieces:
            content = np.ascontiguousarray(piece, dtype=dtype).data.cast("B")
            handle.write(content)
            digest.update(content)
            written += piece.size
        handle.flush()
        os.fsync(handle.fileno())
        size = handle.tell()
    assert written == int(np.prod(shape)), f"{path.name}: {written} values written into shape {shape}"
    return {"sha256": digest.hexdigest(), "bytes": size, "dtype": dtype.name, "shape": list(shape)}


def write_arrays(folder: Path, contents: Mapping[str, tuple[Any, tuple[int, ...], Iterable[np.ndarray]]]) -> dict:
    """Several arrays by name, each a dtype, a shape and chunks; returns the manifest entries by file."""
    return {f"{name}.npy": write_array(folder / f"{name}.npy", *content) for name, content in contents.items()}


def write_split(
    folder: Path, name: str, lengths: np.ndarray, labels: np.ndarray, tokens: Iterable[np.ndarray], kind: Any = np.uint8
) -> dict[str, dict]:
    """The three arrays of one split; `tokens` are chunks of any size. Returns the manifest entries by file.

    `kind` is the dtype of a token on disk.
    """
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    contents = {
        f"{name}.tokens": (kind, (int(starts[-1]),), tokens),
        f"{name}.starts": (np.int64, starts.shape, [starts]),
        f"{name}.labels": (np.uint8, labels.shape, [labels]),
    }
    return write_arrays(folder, contents)


def read_array(path: Path, entry: dict) -> np.ndarray:
    """A read-only memory map of the array, checked against its manifest entry except for the hash."""
    try:
        if path.stat().st_size != entry["bytes"]:
            raise DataDamaged(f"{path} should have {entry['bytes']} bytes, found {path.stat().st_size}")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataDamaged(f"{path} is listed in the manifest but is not there") from error
    except (OSError, ValueError, OverflowError, EOFError, SyntaxError, TokenError) as error:
        raise DataDamaged(f"{path} is not a readable array ({error})") from error
    if array.dtype != np.dtype(entry["dtype"]) or list(array.shape) != entry["shape"]:
        raise DataDamaged(
            f"{path} should hold {entry['dtype']} {entry['shape']}, found {array.dtype} {list(array.shape)}"
        )
    return array


def hash_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
