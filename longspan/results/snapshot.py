"""A board as plain JSON data, and frozen under a name."""

import json
from dataclasses import asdict
from pathlib import Path

from longspan.core import atomic
from longspan.core.errors import UsageError
from longspan.results.board_notes import RULES
from longspan.results.board_types import Board
from longspan.results.card import canonical


def as_data(view: Board) -> dict:
    """The board as plain JSON data."""
    plain = json.loads(json.dumps(asdict(view)))
    return {"schema": 1, "kind": "board", **plain, "standin": view.standin, "rules": list(RULES)}


def freeze(view: Board, name: str, folder: str | Path) -> Path:
    """Write a named snapshot. Freezing the same board again is harmless; another board under the name is refused."""
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise UsageError(f"A snapshot name has letters, digits, '-', '_' and '.' only, got {name!r}.")
    path = Path(folder) / f"{name}.json"
    content = {"snapshot": name, **as_data(view)}
    if path.exists():
        if not _holds(path, content):
            raise UsageError(f"Snapshot {name!r} is frozen with other content at {path}; choose a new name.")
        return path
    atomic.write_json(path, content)
    return path


def _holds(path: Path, content: dict) -> bool:
    """Whether a file holds this snapshot; one that cannot be read does not."""
    try:
        return canonical(json.loads(path.read_text(encoding="utf-8"))) == canonical(content)
    except (ValueError, RecursionError):
        return False
