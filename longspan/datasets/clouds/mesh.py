"""Triangle meshes from OFF and OBJ files; polygons are cut into fans.

    mesh = read_mesh(content, ".off", "chair.off")      # mesh.vertices [n 3], mesh.triangles [m 3]

ModelNet writes some OFF files with the counts on the first line (`OFF490 518 0`), which is read too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds.numbers import checked, table


@dataclass(frozen=True, eq=False)
class Mesh:
    vertices: np.ndarray  # float32 [n 3]
    triangles: np.ndarray  # int64 [m 3]

    @classmethod
    def of(cls, vertices: np.ndarray, triangles: np.ndarray, where: str) -> "Mesh":
        """A mesh whose triangles refer to existing vertices; one without any area is refused when it is sampled."""
        vertices = checked(vertices, where)
        if not len(triangles):
            raise CorruptFile(f"{where} has no faces, so there is no surface to take points of; leave it out.")
        low, high = int(triangles.min()), int(triangles.max())
        if low < 0 or high >= len(vertices):
            wrong = low if low < 0 else high
            raise CorruptFile(f"{where}: a face has vertex {wrong}, but there are only {len(vertices)}; get it again.")
        return cls(vertices, triangles)


def read_off(content: bytes, where: str) -> Mesh:
    rows = [line for row in content.splitlines() if (line := row.partition(b"#")[0].strip())]
    if not rows or not rows[0].startswith(b"OFF"):
        raise CorruptFile(f"{where} is no OFF file: it does not begin with OFF; get the file again.")
    rest = rows[0][3:].strip()
    rows = [rest, *rows[1:]] if rest else rows[1:]
    words = rows[0].split() if rows else []
    if len(words) not in (2, 3) or not all(word.isdigit() and len(word) < 10 for word in words):
        found = repr(rows[0][:60]) if rows else "nothing"
        raise CorruptFile(f"{where}: expected the numbers of vertices and faces after OFF, found {found}.")
    vertices, faces = int(words[0]), int(words[1])
    if len(rows) - 1 < vertices + faces:
        raise CorruptFile(
            f"{where} says {vertices} vertices and {faces} faces, but has {len(rows) - 1} lines of them; get it again."
        )
    points = table(rows[1 : 1 + vertices], None, where)
    polygons = (_polygon(row, where) for row in rows[1 + vertices : 1 + vertices + faces])
    return Mesh.of(points[:, :3], fans(polygons), where)


def _polygon(row: bytes, where: str) -> list[int]:
    words = row.split()
    numbers = _whole(words[: 1 + int(words[0])] if words[0].isdigit() and len(words[0]) < 7 else words, where)
    if len(numbers) != numbers[0] + 1:
        raise CorruptFile(f"{where}: a face should be a number of vertices and as many of them, found {row[:60]!r}.")
    return numbers[1:]


def read_obj(content: bytes, where: str) -> Mesh:
    vertices: list[bytes] = []
    polygons: list[list[int]] = []
    for row in content.splitlines():
        name, _, rest = row.strip().partition(b" ")
        if name == b"v":
            vertices.append(b" ".join(rest.split()[:3]))
        elif name == b"f":
            numbers = _whole([word.partition(b"/")[0] for word in rest.split()], where)
            polygons.append([number - 1 if number > 0 else len(vertices) + number for number in numbers])
    return Mesh.of(table(vertices, 3, where), fans(polygons), where)


def _whole(words: Sequence[bytes], where: str) -> list[int]:
    try:
        numbers = [int(word) for word in words if len(word) < 12]
    except ValueError as error:
        raise CorruptFile(f"{where}: a face should be numbers of vertices ({error}); get the file again.") from error
    if len(numbers) != len(words):
        raise CorruptFile(f"{where}: a face has a number of more than 11 digits; get the file again.")
    return numbers


def fans(polygons: Iterable[Sequence[int]]) -> np.ndarray:
    """Triangles [m 3] from the first corner of every polygon; polygons with fewer than three corners have none."""
    found = [(one[0], one[i], one[i + 1]) for one in polygons for i in range(1, len(one) - 1)]
    return np.array(found, np.int64).reshape(-1, 3)
