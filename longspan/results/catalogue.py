"""The catalogue: every mechanism, task, backbone, dataset, suite and protocol, as plain data.

    shipped(("attentions",))         # {"schema": 1, "attentions": [...], "problems": []}, or None
    read("out/catalogue.json")       # one that `longspan list --json` or `longspan report` wrote

Reading it needs no torch; `longspan.catalogue()`, which makes one, imports everything that it describes. The package
ships one in `catalogue.json`, with a hash of the sources of each kind: `make generated` writes it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from longspan.core import atomic
from longspan.core.errors import CorruptFile

SCHEMA = 1
PACKAGE = Path(__file__).parents[1]
SHIPPED = Path(__file__).with_suffix(".json")
Entry = dict[str, Any]

# Each kind with the packages and files that its entries are made from. Protocols are collected from the tasks.
_OF_TASKS = ("tasks", "datasets", "backbones", "attentions/base.py")
SOURCES = {
    "attentions": ("attentions",),
    "tasks": _OF_TASKS,
    "backbones": ("backbones",),
    "datasets": ("datasets",),
    "suites": ("suites.py", "published/index_constants.py", "published/cab_index.json"),
    "protocols": _OF_TASKS,
}
KINDS = tuple(SOURCES)


def read(path: str | Path) -> dict[str, Any]:
    """A catalogue written earlier."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptFile(
            f"{path} is not a readable catalogue ({error}); write it again: longspan list --json."
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise CorruptFile(f"{path} is not a catalogue of schema {SCHEMA}; write it again: longspan list --json.")
    return content


def shipped(kinds: Sequence[str] | None = None) -> dict[str, Any] | None:
    """The catalogue shipped with the package, or some kinds of it; None if it is out of date or incomplete.

    That is, if a source was edited since, or an installed package adds mechanisms or tasks of its own.
    """
    kinds = kinds or KINDS
    content = read(SHIPPED)
    if any(content["sources"][kind] != source_hash(kind) for kind in kinds) or _has_plugins(kinds):
        return None
    return {"schema": SCHEMA, **{kind: content[kind] for kind in kinds}, "problems": content["problems"]}


def write_shipped(content: Mapping[str, Any]) -> None:
    """Write this catalogue as the shipped one. Each entry is one line, so that a diff shows what has changed."""
    content = {**content, "sources": {kind: source_hash(kind) for kind in KINDS}}
    lines = (f"{json.dumps(key)}: {_lines(value)}" for key, value in content.items())
    atomic.write_text(SHIPPED, "{\n" + ",\n".join(lines) + "\n}\n")


def source_hash(kind: str) -> str:
    """A hash of the names and contents of all files that the entries of a kind are made from."""
    digest = hashlib.sha256()
    for path in _sources(kind):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(kind: str) -> Iterator[Path]:
    for name in SOURCES[kind]:
        path = PACKAGE / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _has_plugins(kinds: Sequence[str]) -> bool:
    groups = {f"longspan.{package}" for kind in kinds for package in SOURCES[kind]}
    return not groups.isdisjoint(entry_points().groups)


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
