"""PLY: a cloud, or a mesh if it has faces; as text or as binary of either byte order."""

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds.mesh import Mesh, fans
from longspan.datasets.clouds.numbers import checked, table

LONGEST_HEADER = 1 << 16
MOST = 1 << 24  # of vertices or faces
_KINDS = {
    b"char": "i1",
    b"uchar": "u1",
    b"short": "i2",
    b"ushort": "u2",
    b"int": "i4",
    b"uint": "u4",
    b"int8": "i1",
    b"uint8": "u1",
    b"int16": "i2",
    b"uint16": "u2",
    b"int32": "i4",
    b"uint32": "u4",
    b"float": "f4",
    b"double": "f8",
    b"float32": "f4",
    b"float64": "f8",
}
_ORDERS = {b"binary_little_endian": "<", b"binary_big_endian": ">", b"ascii": ""}
Element = tuple[bytes, int, list[list[bytes]]]  # name, count, the words of its properties


def read_ply(content: bytes, where: str) -> np.ndarray | Mesh:
    """Points float32 [n 3], or a mesh."""
    order, elements, rest = _header(content, where)
    found: dict[bytes, np.ndarray] = {}
    for name, count, properties in elements:
        if name not in (b"vertex", b"face") or (name == b"face" and b"vertex" not in found):
            raise CorruptFile(f"{where}: PLY files of vertices, then faces, can be read; this one has {name!r:.40}.")
        read = _vertices if name == b"vertex" else _faces
        found[name], rest = read(rest, count, properties, order, where)
    if b"vertex" not in found:
        raise CorruptFile(f"{where} is a PLY file without vertices; get it again.")
    if not len(found.get(b"face", ())):
        return checked(found[b"vertex"], where)
    return Mesh.of(found[b"vertex"], found[b"face"], where)


def _header(content: bytes, where: str) -> tuple[str, list[Element], bytes]:
    begin, end, rest = content[:LONGEST_HEADER].partition(b"end_header")
    if not begin.startswith(b"ply") or not end:
        raise CorruptFile(f"{where} is no PLY file: it has no header from ply to end_header; get it again.")
    rest = content[len(begin) + len(end) :]
    rest = rest.removeprefix(b"\r").removeprefix(b"\n")
    order, elements = None, []
    for row in begin.splitlines()[1:]:
        words = row.split()
        if words[:1] == [b"format"] and len(words) > 1:
            order = _ORDERS.get(words[1])
        elif words[:1] == [b"element"] and len(words) == 3 and words[2].isdigit() and int(words[2][:9]) <= MOST:
            elements.append((words[1], int(words[2][:9]), []))
        elif words[:1] == [b"property"] and elements and len(words) > 2:
            elements[-1][2].append(words[1:])
        elif words and words[0] not in (b"comment", b"obj_info"):
            raise CorruptFile(f"{where}: the PLY header has a line {row[:60]!r}, which cannot be read.")
    if order is None:
        raise CorruptFile(f"{where}: the PLY header should say format ascii or binary; get the file again.")
    return order, elements, rest


def _vertices(rest: bytes, count: int, properties: list, order: str, where: str) -> tuple[np.ndarray, bytes]:
    names = [words[-1] for words in properties]
    plain = all(len(words) == 2 and words[0] in _KINDS for words in properties)
    if not {b"x", b"y", b"z"} <= set(names) or len(set(names)) != len(names) or not plain:
        raise CorruptFile(f"{where}: vertices should have the properties x, y and z, found {names!r:.80}.")
    places = [names.index(name) for name in (b"x", b"y", b"z")]
    if not order:
        rows, rest = _rows(rest, count, "vertices", where)
        return table(rows, len(names), where)[:, places], rest
    kinds = np.dtype([(f"f{i}", f"{order}{_KINDS[words[0]]}") for i, words in enumerate(properties)])
    content, rest = _bytes(rest, count * kinds.itemsize, "vertices", where)
    rows = np.frombuffer(content, kinds)
    return np.stack([rows[f"f{place}"] for place in places], axis=1), rest


def _faces(rest: bytes, count: int, properties: list, order: str, where: str) -> tuple[np.ndarray, bytes]:
    lists = [words for words in properties if words[0] == b"list"]
    simple = len(properties) == len(lists) == 1 and len(lists[0]) == 4 and {*lists[0][1:3]} <= set(_KINDS)
    if not simple or "f" in (_KINDS[lists[0][1]] + _KINDS[lists[0][2]]):
        raise CorruptFile(f"{where}: faces should be one list of vertex indices, found {properties!r:.80}.")
    if not order:
        rows, rest = _rows(rest, count, "faces", where)
        words = [row.split() for row in rows]
        if not all(all(word.isdigit() and len(word) < 10 for word in row) and row for row in words):
            raise CorruptFile(f"{where}: faces should be numbers of vertices; get the file again.")
        polygons = [[int(word) for word in row] for row in words]
        if any(len(one) != one[0] + 1 for one in polygons):
            raise CorruptFile(f"{where}: a face has another number of vertices than it says; get the file again.")
        return fans(one[1:] for one in polygons), rest
    length, index = (np.dtype(f"{order}{_KINDS[word]}") for word in lists[0][1:3])
    polygons, place = [], 0
    for _ in range(count):
        head, _ = _bytes(rest[place : place + length.itemsize], length.itemsize, "faces", where)
        corners = int(np.frombuffer(head, length)[0])
        place += length.itemsize
        size = max(corners, 0) * index.itemsize
        body, _ = _bytes(rest[place : place + size], size, "faces", where)
        polygons.append(np.frombuffer(body, index).tolist())
        place += size
    return fans(polygons), rest[place:]


def _rows(rest: bytes, count: int, what: str, where: str) -> tuple[list[bytes], bytes]:
    rows = rest.split(b"\n", count)
    if len(rows) < count or (count and not rows[count - 1].strip()):
        raise CorruptFile(f"{where} says {count} {what}, but ends before; get the file again.")
    return rows[:count], rows[count] if len(rows) > count else b""


def _bytes(rest: bytes, size: int, what: str, where: str) -> tuple[bytes, bytes]:
    if len(rest) < size:
        raise CorruptFile(f"{where} ends within its {what}; get the file again.")
    return rest[:size], rest[size:]
