"""Pathfinder images as users have them: PNG files in folders or in an archive, or one array.

`imgs/<batch>/sample_<i>.png` are the images and `metadata/<batch>.npy` lists them, a line each with the label in the
fourth field. The metadata are plain text in the release, despite their name, and arrays if the public generator wrote
them.
"""

import io
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from longspan.core.archive import Member
from longspan.core.errors import CorruptFile


class Listed(NamedTuple):
    """One line of the metadata."""

    name: str
    label: int


class Images(ABC):
    """Images in the order of their metadata; `holds` says which are not empty files."""

    listed: list[Listed]
    scratch: Path | None = None  # a file to remove after the last image was read

    @property
    def labels(self) -> np.ndarray:
        return np.array([label for _, label in self.listed], np.uint8)

    @abstractmethod
    def holds(self) -> np.ndarray:
        """For every listed image, whether its file is not empty; an absent file is an error."""

    @abstractmethod
    def pixels(self, row: int) -> np.ndarray:
        """The image of one line, [size size]."""


class Folder(Images):
    """`imgs/` and `metadata/` in a folder."""

    def __init__(self, folder: Path, size: int):
        self.folder, self.size = folder, size
        batches = {file.stem: file for file in (folder / "metadata").glob("*.npy")}
        self.listed = [line for stem in in_order(batches) for line in read_metadata(batches[stem])]

    def holds(self) -> np.ndarray:
        return np.array([_size(self.folder / name) > 0 for name, _ in self.listed], bool)

    def pixels(self, row: int) -> np.ndarray:
        file = self.folder / self.listed[row].name
        return read_png(file.read_bytes(), self.size, str(file))


class Pile(Images):
    """Members of an archive, in any order: images are decoded as they are read, into one file on disk.

    With `enough`, reading stops as soon as that many images are listed and all of them have been read.
    """

    def __init__(self, found: Iterable[Member], size: int, scratch: Path, enough: int | None = None):
        self.scratch = scratch / "pile.pixels"
        self.place: dict[str, int] = {}  # image -> its row in the file, -1 where it is empty
        batches: dict[str, list[Listed]] = {}
        waiting: set[str] = set()
        filled = 0
        with self.scratch.open("wb") as pile:
            for member in found:
                kind, name = _inside(member.name)
                stem = PurePosixPath(name).stem
                if name in self.place or (kind == "metadata" and stem in batches):
                    raise CorruptFile(
                        f"{member.where} holds {name} twice (again as {member.name}); name one folder of it."
                    )
                if kind == "metadata":
                    batches[stem] = list(metadata_lines(member.read(), f"{member.name} in {member.where}"))
                    waiting.update(name for name, _ in batches[stem] if name not in self.place)
                else:
                    content = member.read()
                    self.place[name] = filled if content else -1
                    if content:
                        pile.write(read_png(content, size, f"{member.name} in {member.where}").tobytes())
                        filled += 1
                    waiting.discard(name)
                if enough is not None and not waiting and sum(map(len, batches.values())) == enough:
                    break
        self.listed = [line for stem in in_order(batches) for line in batches[stem]]
        if waiting:
            raise CorruptFile(
                f"The metadata list {len(waiting)} images that are not in the archive, the first of them "
                f"{min(waiting)}; get the archive again."
            )
        shape = (filled, size, size)
        self.array = np.memmap(self.scratch, np.uint8, "r", shape=shape) if filled else np.zeros(shape, np.uint8)

    def holds(self) -> np.ndarray:
        return np.array([self.place[name] >= 0 for name, _ in self.listed], bool)

    def pixels(self, row: int) -> np.ndarray:
        return self.array[self.place[self.listed[row].name]]


class Arrays(Images):
    """A `.npz` file with `x` uint8 [n size size] and `y` [n] of 0 and 1."""

    def __init__(self, path: Path, size: int):
        try:
            with np.load(path, allow_pickle=False) as found:
                self.x, y = found["x"], found["y"]
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise CorruptFile(f"{path} should hold arrays x (images) and y (labels), but {error}.") from error
        if self.x.dtype != np.uint8 or self.x.ndim != 3 or self.x.shape[1:] != (size, size):
            found = f"{self.x.dtype} {list(self.x.shape)}"
            raise CorruptFile(f"{path}: x should be uint8 [n {size} {size}], found {found}; check the settings.")
        if y.shape != self.x.shape[:1] or not np.isin(y, (0, 1)).all():
            raise CorruptFile(f"{path}: y should hold a label 0 or 1 for each of the {len(self.x)} images.")
        self.listed = [Listed(str(row), int(label)) for row, label in enumerate(y)]

    def holds(self) -> np.ndarray:
        return np.ones(len(self.x), bool)

    def pixels(self, row: int) -> np.ndarray:
        return self.x[row]


def wanted_images(size: int, folder: str, others: Iterable[str]):
    """Which members belong to one side length and difficulty: whole paths, or what remains of them in a smaller tar."""
    others = set(others) - {folder}

    def wanted(name: str) -> bool:
        kind, _ = _inside(name)
        above = name.split("/")[:-2]
        foreign = [part for part in above if part in others or re.fullmatch(r"pathfinder\d+", part)]
        return kind is not None and all(part == f"pathfinder{size}" for part in foreign)

    return wanted


def _inside(name: str) -> tuple[str | None, str]:
    """What a member is, `imgs` or `metadata` or neither, and its path as the metadata write it."""
    found = re.search(r"(?:^|/)((imgs)/[^/]+/[^/]+\.png|(metadata)/[^/]+\.npy)$", name)
    return (found[2] or found[3], found[1]) if found else (None, name)


def in_order(batches: Iterable[str]) -> list[str]:
    """Batches by number: 2 before 10."""
    return sorted(batches, key=lambda stem: (len(stem), stem))


def read_metadata(file: Path) -> Iterator[Listed]:
    yield from metadata_lines(file.read_bytes(), str(file))


def metadata_lines(content: bytes, where: str) -> Iterator[Listed]:
    """Image (a relative path that stays inside) and label of every line."""
    for number, fields in enumerate(_fields(content, where), start=1):
        if len(fields) < 4 or fields[3] not in ("0", "1"):
            raise CorruptFile(
                f"{where}, line {number}: expected folder, file, number and label 0 or 1, found {fields}."
            )
        name = PurePosixPath(fields[0]) / fields[1]
        if name.is_absolute() or ".." in name.parts or "\\" in str(name) or name.suffix != ".png":
            raise CorruptFile(f"{where}, line {number}: {str(name)!r} is not a PNG file beside the metadata; refused.")
        yield Listed(str(name), int(fields[3]))


def _fields(content: bytes, where: str) -> Iterator[list[str]]:
    """The fields of every line, whether the file is plain text (the release) or a NumPy array (the generator)."""
    if not content.startswith(b"\x93NUMPY"):
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise CorruptFile(f"{where} is neither a NumPy array nor UTF-8 text; get it again.") from error
        yield from (line.split(" ") for line in text.splitlines() if line)
        return
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except ValueError as error:
        raise CorruptFile(
            f"{where} cannot be read as a plain array ({error}); arrays of Python objects are refused, since loading "
            "them runs code: save it as text or as an array of strings."
        ) from error
    if array.ndim != 2:
        raise CorruptFile(f"{where} should hold a table, found an array of shape {array.shape}.")
    for row in array:
        yield [field.decode() if isinstance(field, bytes) else str(field) for field in row.tolist()]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError as error:
        raise CorruptFile(f"{file} is listed in the metadata but is not there; unpack the archive again.") from error


def read_png(content: bytes, size: int, where: str) -> np.ndarray:
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            warnings.simplefilter("error")  # Pillow only warns of images that unpack to a suspicious size
            if image.size != (size, size) or image.mode != "L":
                found = f"{image.size[0]} x {image.size[1]}, mode {image.mode}"
                raise CorruptFile(
                    f"{where} should be a gray image of {size} x {size}, found {found}; check the settings."
                )
            return np.array(image)
    except (OSError, SyntaxError, Warning) as error:
        raise CorruptFile(f"{where} is not a readable PNG image ({error}); unpack the archive again.") from error
