"""PCD, the files of the Point Cloud Library: a header of words, then points as text or as bytes.

    FIELDS x y z / SIZE 4 4 4 / TYPE F F F / COUNT 1 1 1 / WIDTH 753 / HEIGHT 1 / POINTS 753 / DATA ascii

Fields other than x, y and z are skipped. `binary_compressed` is refused.
"""

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds.numbers import checked, table

LONGEST_HEADER = 1 << 14  # bytes
MOST_POINTS = 1 << 24
MOST_FIELDS = 64
_DATA = (b"ascii", b"binary")


def read_pcd(content: bytes, where: str) -> np.ndarray:
    """The points, float32 [n 3]."""
    header, rest = _header(content, where)
    names = header[b"FIELDS"]
    if not {b"x", b"y", b"z"} <= set(names) or len(set(names)) != len(names) or len(names) > MOST_FIELDS:
        raise CorruptFile(f"{where}: the PCD header should name the fields x, y and z once, found {_shown(names)}.")
    counts = _numbers(header, b"COUNT", len(names), where) if b"COUNT" in header else [1] * len(names)
    (count,) = _numbers(header, b"POINTS", 1, where)
    width, height = (_numbers(header, name, 1, where)[0] for name in (b"WIDTH", b"HEIGHT"))
    if count != width * height or not 0 < count <= MOST_POINTS:
        raise CorruptFile(
            f"{where}: the PCD header says {count} points and {width} x {height} of them; expected the same number, "
            f"from 1 to {MOST_POINTS:,}."
        )
    if max(counts) > MOST_FIELDS or min(counts) < 1:
        raise CorruptFile(f"{where}: the PCD header has fields of {max(counts)} numbers; expected 1 to {MOST_FIELDS}.")
    places = {name: sum(counts[:i]) for i, name in enumerate(names)}
    xyz = [places[name] for name in (b"x", b"y", b"z")]
    if header[b"DATA"] == [b"ascii"]:
        rows = table(rest, sum(counts), where)
        if len(rows) != count:
            raise CorruptFile(f"{where}: the PCD header says {count} points, found {len(rows)}; get the file again.")
        return checked(rows[:, xyz], where)
    kinds = _kinds(header, names, counts, where)
    if len(rest) != count * kinds.itemsize:
        raise CorruptFile(
            f"{where}: {count} points should take {count * kinds.itemsize} bytes, found {len(rest)}; get it again."
        )
    rows = np.frombuffer(rest, kinds)
    return checked(np.stack([rows[name].reshape(count, -1)[:, 0] for name in "xyz"], axis=1), where)


def _header(content: bytes, where: str) -> tuple[dict[bytes, list[bytes]], bytes]:
    """The words of every line of the header, and what follows it."""
    header, place = {}, 0
    while place < min(len(content), LONGEST_HEADER):
        end = content.find(b"\n", place, LONGEST_HEADER)
        line, place = content[place : end if end >= 0 else place + 80], (end + 1 if end >= 0 else LONGEST_HEADER)
        name, *words = line.split() or [b"#"]
        if name.startswith(b"#"):
            continue
        header[name] = words
        if name == b"DATA":
            missing = [one.decode() for one in (b"FIELDS", b"WIDTH", b"HEIGHT", b"POINTS") if one not in header]
            if missing:
                raise CorruptFile(f"{where}: the PCD header has no {', '.join(missing)}; get the file again.")
            if words not in ([one] for one in _DATA):
                known = " or ".join(one.decode() for one in _DATA)
                raise CorruptFile(f"{where}: the PCD header says DATA {_shown(words)}, where {known} can be read.")
            return header, content[place:]
    raise CorruptFile(f"{where} is no PCD file: its header has no line DATA; get the file again.")


def _numbers(header: dict[bytes, list[bytes]], name: bytes, count: int, where: str) -> list[int]:
    words = header.get(name, [])
    if len(words) != count or not all(word.isdigit() and len(word) < 10 for word in words):
        raise CorruptFile(
            f"{where}: the PCD header should have {count} whole numbers after {name.decode()}, found {_shown(words)}."
        )
    return [int(word) for word in words]


def _kinds(header: dict[bytes, list[bytes]], names: list[bytes], counts: list[int], where: str) -> np.dtype:
    """The layout of a point in a binary file."""
    sizes, types = _numbers(header, b"SIZE", len(names), where), header.get(b"TYPE", [])
    known = {(b"F", 4), (b"F", 8), *((kind, size) for kind in (b"I", b"U") for size in (1, 2, 4, 8))}
    if len(types) != len(names) or not set(zip(types, sizes, strict=True)) <= known:
        raise CorruptFile(f"{where}: the PCD header has TYPE {_shown(types)} and SIZE {sizes}; expected F, I or U.")
    letters = {b"F": "f", b"I": "i", b"U": "u"}
    return np.dtype(
        [
            (name.decode("latin-1"), f"<{letters[kind]}{size}", (count,))
            for name, kind, size, count in zip(names, types, sizes, counts, strict=True)
        ]
    )


def _shown(words: list[bytes]) -> str:
    return repr(b" ".join(words).decode("latin-1"))[:80]
