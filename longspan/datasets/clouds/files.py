"""A shape from a file, by its extension: a point cloud or a mesh, also compressed with xz."""

import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError

import numpy as np

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds.mesh import Mesh, read_obj, read_off
from longspan.datasets.clouds.numbers import checked, table
from longspan.datasets.clouds.pcd import read_pcd
from longspan.datasets.clouds.ply import read_ply

LARGEST = 1 << 30  # bytes of a file, unpacked


def _rows(content: bytes, where: str) -> np.ndarray:
    """Rows of x, y, z and whatever follows, separated by blanks or commas."""
    return checked(table(content.replace(b",", b" "), None, where)[:, :3], where)


READERS: dict[str, Callable[[bytes, str], np.ndarray | Mesh]] = {
    ".pcd": read_pcd,
    ".ply": read_ply,
    ".off": read_off,
    ".obj": read_obj,
    ".xyz": _rows,
    ".txt": _rows,
}
ENDINGS = (*READERS, ".npz")


def ending(path: Path) -> str:
    """`.off` for chair.off and for chair.off.xz."""
    return Path(path.stem if path.suffix == ".xz" else path.name).suffix.lower()


def read_shape(path: Path) -> np.ndarray | Mesh:
    """Points float32 [n 3], or a mesh."""
    if ending(path) == ".npz":
        arrays = read_npz(path, "points")
        return checked(arrays["points"], f"{path}, points")
    return READERS[ending(path)](read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as handle:
            content = handle.read(LARGEST + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise CorruptFile(f"{path} cannot be unpacked ({error}); get it again.") from error
    if len(content) > LARGEST:
        raise CorruptFile(f"{path} has more than {LARGEST:,} bytes, which no shape here needs; leave it out.")
    return content


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """These arrays of an .npz file; objects, and files that unpack to more than a gigabyte, are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST:
                raise CorruptFile(f"{path} unpacks to more than {LARGEST:,} bytes; it is not a file of clouds.")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except KeyError as error:
        raise CorruptFile(f"{path} should hold the arrays {', '.join(names)}; {error.args[0]}.") from error
    except _DAMAGE as error:
        told = " ".join(str(error).split())[:120]
        raise CorruptFile(f"{path} is not a readable .npz file ({told}); get it again.") from error


_DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, OverflowError)
_DAMAGE += (SyntaxError, TokenError, NotImplementedError, RuntimeError)  # from headers and members that no writer makes
