"""Tables of CAB about tasks and their training, cell by cell, beside what the protocol `cab-2023` has in their place.

table = task_settings("Table 4")
table.ours(table.rows[4], "Peak rate", entry)      # '0.0005', from the entry of task `lm` in a catalogue
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources
from typing import Any

from longspan.core.errors import UnknownName, did_you_mean
from longspan.published.index_constants import index_constants

FILE = "cab_tasks.json"
CODES = {"noncausal_self": "NS", "causal_self": "CS", "noncausal_cross": "NC", "causal_cross": "CC"}
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class TaskRow:
    """`settings` are the places of a task's entry that a cell is about; `ours` is the text where there is none."""

    title: str
    task: str
    printed: Mapping[str, str]
    settings: Mapping[str, tuple[str, ...]]
    ours: Mapping[str, str]


@dataclass(frozen=True)
class TaskTable:
    number: str
    title: str
    protocol: str
    columns: tuple[str, ...]
    rows: tuple[TaskRow, ...]

    def ours(self, row: TaskRow, column: str, entry: Entry) -> str:
        """What this package has in place of a printed cell, from the entry of the row's task."""
        if column in row.ours:
            return row.ours[column]
        return "/".join(_text(_found(entry, self.protocol, place)) for place in row.settings[column])


def _found(entry: Entry, protocol: str, place: str) -> Any:
    if place == "patterns":
        slots = set(entry["slots"].values())
        return [code for pattern, code in CODES.items() if pattern in slots]
    if place == "metrics":  # of the index, not only the one that chooses a checkpoint
        measures = (own for pattern in index_constants().patterns.values() for own in pattern.measures)
        return list(dict.fromkeys(own.metric for own in measures if entry["name"] in own.settings))
    start = entry["settings"][protocol] if "." in place else entry
    return reduce(lambda found, name: found[name], place.split("."), start)


def _text(value: Any) -> str:
    """
    >>> _text(125000), _text([0.9, 0.98]), _text(None), _text(["NS", "CS"])
    ('125,000', '(0.9, 0.98)', 'none', 'NS CS')
    """
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        words = all(isinstance(one, str) for one in value)
        return " ".join(value) if words else f"({', '.join(map(str, value))})"
    return str(value)


def task_settings(number: str) -> TaskTable:
    """The table of that number, such as `Table 4`."""
    if number not in _tables():
        raise UnknownName(f"No printed table of tasks is called {number!r}.{did_you_mean(number, _tables())}")
    return _tables()[number]


@cache
def _tables() -> dict[str, TaskTable]:
    content = json.loads(resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8"))
    return {table["number"]: _table(table, content["protocol"]) for table in content["tables"]}


def _table(content: Entry, protocol: str) -> TaskTable:
    columns = tuple(content["columns"])
    rows = tuple(_row(row, columns, content["settings"]) for row in content["rows"])
    return TaskTable(content["number"], content["title"], protocol, columns, rows)


def _row(row: Entry, columns: Sequence[str], shared: Mapping[str, Sequence[str]]) -> TaskRow:
    places = {name: tuple(found) for name, found in {**shared, **row.get("settings", {})}.items()}
    printed = dict(zip(columns, row["printed"], strict=True))
    return TaskRow(row["title"], row["task"], printed, places, row.get("ours", {}))
