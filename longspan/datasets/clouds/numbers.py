"""Numbers in text files, and the check that every point must pass."""

import io
from collections.abc import Sequence

import numpy as np

from longspan.core.errors import CorruptFile


def table(rows: bytes | Sequence[bytes], columns: int | None, where: str) -> np.ndarray:
    """Rows of numbers separated by blanks, float64 [rows columns]; with None, as many columns as the first row has."""
    content = rows if isinstance(rows, bytes) else b"\n".join(rows)
    if not content.strip():
        return np.empty((0, columns or 3))
    try:
        found = np.loadtxt(io.BytesIO(content), comments=None, ndmin=2, encoding="latin-1")
    except (ValueError, UnicodeError) as error:
        told = " ".join(str(error).split())[:120]
        raise CorruptFile(f"{where}: expected rows of numbers ({told}); get the file again.") from error
    if columns is not None and found.shape[1] != columns:
        raise CorruptFile(f"{where}: expected {columns} numbers in a row, found {found.shape[1]}; get the file again.")
    return found


def checked(points: np.ndarray, where: str) -> np.ndarray:
    """Points float32 [n 3], checked to be finite and at least one."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise CorruptFile(f"{where}: expected points of three coordinates, found an array {list(points.shape)}.")
    if not len(points):
        raise CorruptFile(f"{where} has no points; leave it out, or get it again.")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are found below
        points = np.ascontiguousarray(points, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(wrong):
        raise CorruptFile(
            f"{where}: point {wrong[0] + 1} of {len(points)} is {points[wrong[0]].tolist()}, not three finite numbers; "
            "get the file again."
        )
    return points
