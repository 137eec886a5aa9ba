"""Parameter counts that papers print, each beside what arithmetic gives for the network it describes.

    [size.derived for size in sizes() if size.task == "lm"]

An entry names the task, the pattern that is replaced and the mechanism with its options, so that it can be counted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

MILLION = 1_000_000
FILES = ("cab_parameters.json",)


@dataclass(frozen=True)
class PrintedSize:
    """One printed entry: `printed` in millions, as in the paper; `derived` exact."""

    source: str
    title: str
    task: str
    protocol: str
    tier: str
    pattern: str
    mechanism: str
    printed: str
    rounded: bool  # else cut off after the last digit shown
    derived: int

    def reads_as_printed(self, total: int) -> bool:
        """Whether a count, written with as many digits, reads as printed.

        >>> abc = PrintedSize("Table 19", "ABC", "t", "p", "full", "noncausal_cross", "abc", "19.50", True, 19_496_460)
        >>> abc.reads_as_printed(19_496_460), abc.reads_as_printed(19_492_364)
        (True, False)
        """
        unit = MILLION // 10 ** len(self.printed.partition(".")[2])
        digits = (total + unit // 2 if self.rounded else total) // unit
        return digits == int(self.printed.replace(".", ""))


@cache
def sizes() -> tuple[PrintedSize, ...]:
    """Every printed entry that names a network of ours."""
    return tuple(size for file in FILES for size in _read(file))


def _read(file: str) -> Iterator[PrintedSize]:
    content = json.loads(resources.files("longspan.published").joinpath(file).read_text(encoding="utf-8"))
    for row in content["rows"]:
        yield PrintedSize(
            source=f"{content['paper']}, Table {row['table']}",
            protocol=content["protocol"],
            tier=content["tier"],
            rounded=row["rounded"],
            **{name: row[name] for name in ("title", "task", "pattern", "mechanism", "printed", "derived")},
        )
