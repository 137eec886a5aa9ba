"""What a board holds: rows of cells and averages, published rows beside them, and cards that stay off it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from longspan.core.printable import shown
from longspan.results.published_rows import ColumnSpread, Paper, PaperRow
from longspan.results.row_conformance import UNCHECKED, Conformance
from longspan.results.variant import REAL, STANDIN, in_words
from longspan.suites import Suite

USUAL_PATTERN = "noncausal_self"  # left out of titles


@dataclass(frozen=True)
class BoardCell:
    """One mechanism on one task. Numbers are None unless status is ok; `missing` means no card."""

    status: Literal["ok", "fail", "missing"]
    value: float | None = None
    std: float | None = None  # over seeds; None for a single seed
    interval: tuple[float, float] | None = None
    seeds: int = 0
    failed: int = 0
    count: int | None = None  # test examples behind each seed's value
    chance: float | None = None
    above_chance: bool | None = None
    left_chance: int | None = None  # seeds that are individually above chance
    left_mean: float | None = None  # over these
    leading: bool = False
    steps_per_second: float | None = None
    parameters: int | None = None
    ratio: float | None = None  # parameters relative to the same network with softmax
    reason: str | None = None
    best: str | None = None  # the task shown, where the column shows the best of several
    lacking: tuple[str, ...] = ()  # those of the tasks that were not run


@dataclass(frozen=True)
class Mean:
    """An average of a row, or what is missing for it."""

    value: float | None
    missing: tuple[str, ...] = ()
    leading: bool = False


@dataclass(frozen=True)
class Row:
    mechanism: str
    title: str
    pattern: str
    rank: int | None
    cells: Mapping[str, BoardCell]
    averages: Mapping[str, Mean]
    steps_per_second: float | None  # geometric mean over the tasks all rows of the board have run
    parameters: float | None  # mean over the same tasks
    ratio: float | None  # the largest over all tasks run
    note: str = ""
    conformance: Conformance = UNCHECKED
    counterpart: str | None = None  # the published row of the same attention
    differences: Mapping[str, float] = field(default_factory=dict)  # own minus published, by task and average


@dataclass(frozen=True)
class OffBoard:
    """A card that would belong here but for one reason."""

    mechanism: str
    title: str
    task: str
    seed: int
    value: float | None
    reason: str


@dataclass(frozen=True)
class Board:
    suite: Suite
    protocol: str
    tier: str
    pattern: str | None
    data: str  # "real", or what took the place of the data of the task: `variant.py`
    rows: tuple[Row, ...]
    free: tuple[Row, ...]
    fidelity: tuple[Row, ...]
    published: tuple[PaperRow, ...]
    off: tuple[OffBoard, ...]
    notes: tuple[str, ...]
    common: tuple[str, ...] = ()  # tasks behind the speed and parameter columns
    summary: Mapping[str, ColumnSpread] = field(default_factory=dict)  # over rows that break no promise, if two or more
    paper: Paper | None = None

    @property
    def title(self) -> str:
        if self.empty and self.paper:
            return shown(f"{self.suite.title} · {self.paper.title}")
        kind = f", {in_words(self.data)}" if self.data != REAL else ""
        named = self.suite.measures or self.pattern in (None, USUAL_PATTERN)
        slots = "" if named else f" · {self.pattern}"
        return shown(f"{self.suite.title} · {self.protocol} · {self.tier}{slots}{kind}")

    @property
    def standin(self) -> bool:
        return self.data == STANDIN

    @property
    def empty(self) -> bool:
        return not (self.rows or self.free or self.fidelity)
