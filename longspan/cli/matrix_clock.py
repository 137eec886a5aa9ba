"""What is said of a cell when it has ended: its result, and how long the rest of the matrix takes.

clock = MatrixClock(cells)
clock.ended(cell, outcome)           # accuracy 33.60 % in 8 s; about 3 min 20 s left
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from longspan.cli import tables
from longspan.core.cell import Cell
from longspan.launchers.base import Outcome


class MatrixClock:
    """Expects of each cell what its task took so far, else what a cell took; cells that run at once share the time."""

    def __init__(self, cells: Sequence[Cell]):
        self.began, self.started = time.monotonic(), time.time()
        self.waiting = {repr(cell): cell.task for cell in cells}
        self.took: dict[str, list[float]] = defaultdict(list)

    def ended(self, cell: Cell, outcome: Outcome) -> str:
        """The result of a cell in words, with the time left where some are waiting."""
        self.waiting.pop(repr(cell), None)
        card = outcome.card
        if card is not None and not self._was_there(card["created"]):
            self.took[cell.task].append(card["timing"]["wall_seconds"])
        left = self.seconds_left()
        rest = f"; about {tables.duration(left)} left" if left else ""
        return f"{self._result(outcome)}{rest}"

    def seconds_left(self) -> float | None:
        """None where nothing is waiting, or no cell has been trained yet."""
        every = [seconds for own in self.took.values() for seconds in own]
        if not (self.waiting and every):
            return None
        mean = statistics.fmean(every)
        expected = sum(statistics.fmean(self.took[task]) if self.took[task] else mean for task in self.waiting.values())
        return expected * (time.monotonic() - self.began) / max(sum(every), 1e-9)

    def _result(self, outcome: Outcome) -> str:
        card = outcome.card
        if card is None:
            return "stopped, the state is saved" if outcome.unfinished else "failed"
        if card["status"] != "ok":
            return f"failed, as its card says: {card['reason']}"
        score = tables.scored(card["score"])
        if self._was_there(card["created"]):
            return f"{score}, done before"
        return f"{score} in {tables.duration(card['timing']['wall_seconds'])}"

    def _was_there(self, created: str) -> bool:
        """Whether a card is older than this command: the cell was answered from it."""
        return datetime.fromisoformat(created).timestamp() < self.started
