"""Options and sizes as CAB prints them (Tables 5 and 14), cell by cell, each with the corresponding setting here.

    for cell in printed_settings():
        cell.table, cell.row, cell.column, cell.printed, cell.reason

The data hold a reason for each cell in which `cab-2023` runs something other than was printed, and for no other.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE = "cab_settings.json"
NOTHING = "-"


@dataclass(frozen=True)
class PrintedSetting:
    """One cell. It is an option of a mechanism in the slots of a pattern, or a setting of the network of a task."""

    table: str
    row: str
    column: str
    printed: str
    tasks: tuple[str, ...]
    pattern: str = ""
    mechanism: str = ""
    option: str = ""
    setting: str = ""  # of the network; empty where it has none
    reason: str = ""


@cache
def printed_settings() -> tuple[PrintedSetting, ...]:
    content = json.loads(resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8"))
    return tuple(PrintedSetting(**row | {"tasks": tuple(row["tasks"])}) for row in content["rows"])
