"""Measurements from elsewhere, as a CSV file with a line for each mechanism and length.

    mechanism,length,time_ms,memory_mib
    vanilla,256,0.472,81
    abc,256,0.648,42

`mechanism`, `length` and at least one of `time_ms`, `memory_mib`, `energy_j` are needed; `time_low_ms`, `time_high_ms`
(quartiles) and `readings` give the times a spread. An empty cell means not measured, `oom` that it did not fit. Other
columns are ignored.
"""

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path

from longspan.analysis.comparable import ReadingSummary
from longspan.core.errors import CorruptFile, DataMissing

MAX_BYTES = 16 * 2**20
COLUMNS = {"time": ("time_ms", 1e-3), "memory": ("memory_mib", 2.0**20), "energy": ("energy_j", 1.0)}
OUT_OF_MEMORY = "oom"


@dataclass
class Measured:
    """What a file has for one mechanism: values by quantity and length, and the lengths that did not fit."""

    values: dict[str, dict[int, ReadingSummary]] = field(default_factory=lambda: {name: {} for name in COLUMNS})
    refused: set[int] = field(default_factory=set)


def read(path: Path, quantity: str) -> dict[str, Measured]:
    """The mechanisms in file order; raises DataMissing without the file, CorruptFile with what is wrong in it."""
    try:
        return _read(path, quantity)
    except csv.Error as error:
        raise CorruptFile(f"{path.name}: no readable CSV ({error}).") from None


def _read(path: Path, quantity: str) -> dict[str, Measured]:
    column = COLUMNS[quantity][0]
    lines = _lines(path)
    reader = csv.DictReader(lines, skipinitialspace=True)
    head = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = head
    for needed in ("mechanism", "length", column):
        if needed not in head:
            raise _fault(path, 1, f"there is no column {needed!r} among {', '.join(map(repr, head)) or 'none'}")
    found: dict[str, Measured] = {}
    seen = set()
    for row in reader:
        number = reader.line_num
        if None in row or None in row.values():
            raise _fault(path, number, f"the line has not the {len(head)} cells that the heading has")
        mechanism, length = row["mechanism"].strip(), _length(path, number, row["length"])
        if not mechanism:
            raise _fault(path, number, "the mechanism has no name")
        if (mechanism, length) in seen:
            raise _fault(path, number, f"{mechanism!r} at length {length} stands there twice")
        seen.add((mechanism, length))
        _take(path, number, found.setdefault(mechanism, Measured()), length, row)
    if not any(one.values[quantity] for one in found.values()):
        raise _fault(path, 1, f"the column {column!r} holds no number")
    return found


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise DataMissing(f"Measurements were to be read from {path}, but there is no such file; name a CSV file.")
    if path.stat().st_size > MAX_BYTES:
        raise CorruptFile(f"{path.name}: larger than {MAX_BYTES // 2**20} MiB, no table of measurements is.")
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path.name}: no text in UTF-8 ({error.reason}); write it as CSV.") from None


def _take(path: Path, number: int, one: Measured, length: int, row: dict[str, str]) -> None:
    for quantity, (column, unit) in COLUMNS.items():
        text = row.get(column, "").strip()
        if text.lower() == OUT_OF_MEMORY:
            one.refused.add(length)
        elif text:
            value = unit * _positive(path, number, column, text)
            spread = _spread(path, number, row) if quantity == "time" else (None, None, None)
            one.values[quantity][length] = ReadingSummary(value, *spread)


def _spread(path: Path, number: int, row: dict[str, str]) -> tuple[float | None, float | None, int | None]:
    texts = [row.get(name, "").strip() for name in ("time_low_ms", "time_high_ms", "readings")]
    if not all(texts):
        return None, None, None
    low, high, count = (
        _positive(path, number, name, text)
        for name, text in zip(("time_low_ms", "time_high_ms", "readings"), texts, strict=True)
    )
    if low > high:
        raise _fault(path, number, f"the lower quartile {low:g} is above the upper one {high:g}")
    return low * 1e-3, high * 1e-3, int(count)


def _length(path: Path, number: int, text: str) -> int:
    value = _positive(path, number, "length", text.strip())
    if not value.is_integer():
        raise _fault(path, number, f"a length is a whole number of tokens, got {text.strip()!r}")
    return int(value)


def _positive(path: Path, number: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise _fault(path, number, f"{column!r} must be a positive number, got {text[:40]!r}")
    return value


def _fault(path: Path, number: int, what: str) -> CorruptFile:
    return CorruptFile(f"{path.name}, line {number}: {what}; see longspan crossover --help for the layout.")
