"""The source of a class: its file, and for a plug-in every other file of the same author that it imports.

    source_hash(Mine)        # changes with mine.py, and with the helper.py beside it

Installed libraries are left out, except the package that the class itself belongs to; so is `longspan` itself.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))

PACKAGES = {"site-packages", "dist-packages"}  # of a user, of the system, of another environment


def source_hash(cls: type) -> str:
    return hashlib.sha256(b"".join(sources(cls))).hexdigest()


@functools.cache
def sources(cls: type) -> tuple[bytes, ...]:
    """The file of the class first, then the others by name. Read once and cached, since that is the code that runs."""
    own = inspect.getsource(sys.modules[cls.__module__]).encode()
    return sources_of(cls.__module__, own, [base.__module__ for base in cls.__mro__])


def sources_of(module: str, own: bytes, others: Iterable[str] = ()) -> tuple[bytes, ...]:
    """The text of a module, and of the same author's other files that it or `others` import, as they are on disk."""
    found: dict[str, bytes] = {}
    waiting = [*imports(own, module), *others]
    while waiting:
        name = waiting.pop()
        path = None if name in found or name == module else _file_of(name)
        if path is not None and _is_own(name, path, module):
            found[name] = path.read_bytes()
            waiting += imports(found[name], name)
    return own, *(found[name] for name in sorted(found))


def imports(text: bytes, module: str) -> Iterator[str]:
    """Names of modules that the source of this module may import, at its top or inside a function."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a file that was named but never imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _file_of(name: str) -> Path | None:
    """The Python file of a module, found without importing anything."""
    file = getattr(sys.modules.get(name), "__file__", None)
    parent = name.rpartition(".")[0]
    if name not in sys.modules and (not parent or hasattr(sys.modules.get(parent), "__path__")):
        spec = importlib.util.find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    path = Path(file) if file else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _is_own(name: str, path: Path, module: str) -> bool:
    top = name.partition(".")[0]
    if top == PACKAGE:
        return False
    return top == module.partition(".")[0] or not _is_installed(path.resolve())


def _is_installed(path: Path) -> bool:
    """Whether a file is of an installed library: of this interpreter, or in some other package folder."""
    return not PACKAGES.isdisjoint(path.parts) or any(path.is_relative_to(at) for at in LIBRARIES)
