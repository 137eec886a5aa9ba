"""The journal of a sweep: what was measured is on disk before the next point begins, one line each.

    journal = Journal(Path("out/runs/measure-0123456789ab"), identity)
    journal.add((4096, "train", "graph"), point, energy=False)
    journal.find((4096, "train", "graph"))

A journal belongs to one mechanism in one pattern with one setup, code and machine: its folder is named after a hash of
all that, so that any change starts another journal. A truncated line is ignored.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longspan.core.atomic import storage_errors
from longspan.efficiency.setup import Key
from longspan.results.card import canonical


class Journal:
    def __init__(self, runs: Path, identity: Mapping[str, Any]):
        digest = hashlib.sha256(canonical(identity)).hexdigest()[:12]
        self.path = runs / f"measure-{digest}" / "points.jsonl"
        self.notes: dict[str, Any] = {}
        self._points: dict[Key, dict[str, Any]] = {}
        self._whole = True  # whether the last line is complete
        if self.path.exists():
            self._read()

    def find(self, key: Key, *, energy: bool = False) -> dict[str, Any] | None:
        """The point of a key, if it was measured before, and with energy if that is requested."""
        line = self._points.get(key)
        return None if line is None or (energy and not line["energy"]) else line["point"]

    def add(self, key: Key, point: Mapping[str, Any], *, energy: bool) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write({"key": list(key), "energy": energy, "at": now, "point": dict(point)})

    def note(self, **facts: Any) -> None:
        """Facts that the points share."""
        self._write({"note": facts})

    def last(self, keys: list[Key]) -> str:
        """When the newest of these points was measured."""
        return max(self._points[key]["at"] for key in keys)

    def forget(self) -> None:
        with storage_errors(self.path):
            self.path.unlink(missing_ok=True)
        self.notes, self._points, self._whole = {}, {}, True

    def _write(self, line: dict[str, Any]) -> None:
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("" if self._whole else "\n") + json.dumps(line, allow_nan=False) + "\n")
        self._whole = True
        self._take(line)

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        self._whole = text.endswith("\n") or not text
        for line in text.splitlines():
            try:
                self._take(json.loads(line))
            except json.JSONDecodeError:  # the process died while it wrote this
                continue

    def _take(self, line: dict[str, Any]) -> None:
        if "note" in line:
            self.notes |= line["note"]
        else:
            length, mode, variant = line["key"]
            self._points[length, mode, variant] = line
