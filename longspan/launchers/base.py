"""What every launcher does: it refuses a wrong request, then runs cells in its own place until none are left.

with open_launcher("local", Limits.parse(None, None), Budget(1500.0), out="out", device="auto") as launcher:
    launcher.plan(cells)
    for cell, outcome in launcher.run(take):     # take(seconds left) is the next cell, or None
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from longspan.core.bucket import is_address
from longspan.core.cell import Cell
from longspan.core.mirror import everywhere
from longspan.core.signals import deferred
from longspan.launchers.limits import parse_seconds

SAVING = 15.0  # seconds at the end of a budget for saving states, a twentieth of it at most

Take = Callable[[float | None], Cell | None]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: its card, or a sentence and an exit code.

    `unfinished`: its time was up. `storage`: its files could not be read or written, which may work elsewhere or later.
    `crowded`: it ran out of memory beside others, and may fit alone.
    """

    card: dict[str, Any] | None = None
    sentence: str = ""
    code: int = 0
    unfinished: bool = False
    storage: bool = False
    crowded: bool = False


class Budget:
    """Wall-clock seconds for all cells together, counted from now; None is no limit."""

    def __init__(self, seconds: float | None = None):
        self.seconds = seconds
        self.deadline = None if seconds is None else time.monotonic() + seconds - min(SAVING, seconds / 20)

    @classmethod
    def parse(cls, text: str | None) -> "Budget":
        """From the word of the command line: `25m`."""
        return cls(None if text is None else parse_seconds(text, "--budget"))

    def left(self) -> float | None:
        """Seconds before cells are stopped."""
        return None if self.deadline is None else self.deadline - time.monotonic()


def shared_data(out: str) -> str:
    """Where the workers find their data: $LONGSPAN_DATA, else beside the cards of a bucket, else `out/data` here."""
    return everywhere(os.environ.get("LONGSPAN_DATA") or (f"{out}/data" if is_address(out) else "out/data"))


def until_stopped(
    turns: Iterator[Iterable[tuple[Cell, Outcome]]],
    budget: Budget,
    cancel: Callable[[], Iterable[tuple[Cell, Outcome]]],
) -> Iterator[tuple[Cell, Outcome]]:
    """The outcomes of every turn. A signal, or the end of the budget, replaces the next turn and cancels the rest."""
    with deferred() as stop:
        while True:
            left = budget.left()
            if stop.asked or (left is not None and left <= 0):
                yield from cancel()
                if stop.asked:
                    stop.now()
                return
            if (ended := next(turns, None)) is None:
                return
            yield from ended


class Launcher(Protocol):
    """Runs cells. A signal or an error that stops it stops its cells too, with their states saved."""

    several: bool  # whether cells run at the same time
    slowdown: float  # how many times longer a cell is expected to take among the others than alone

    def __enter__(self) -> "Launcher": ...

    def __exit__(self, *error: Any) -> None: ...

    def plan(self, cells: Sequence[Cell]) -> None:
        """Refuse a wrong request before anything is trained."""
        ...

    def run(self, take: Take) -> Iterator[tuple[Cell, Outcome]]:
        """Each cell with its outcome, as they end."""
        ...
