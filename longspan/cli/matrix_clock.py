"""The words printed when a cell ends: its result, and how long the rest of the matrix will take.

clock = MatrixClock(cells)
clock.ended(cell, outcome)           # accuracy 33.60 % in 8 s; about 3 min 20 s left
"""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from longspan.cli import tables
from longspan.core.cell import Cell
from longspan.launchers.base import Outcome


class MatrixClock:
    """Expects each cell to take the mean time of its task so far, else of all cells; parallel cells share the time."""

    def __init__(self, cells: Sequence[Cell]):
        self.began, self.started = time.monotonic(), time.time()
        self.waiting = Counter(cell.task for cell in cells)
        self.timed: Counter[str] = Counter()  # trained cells of each task
        self.seconds: dict[str, float] = {}  # their total time

    def ended(self, cell: Cell, outcome: Outcome) -> str:
        """The result of a cell in words, with the time left if others are waiting."""
        self.waiting[cell.task] -= 1
        card = outcome.card
        if card is not None and not self._was_there(card["created"]):
            self.timed[cell.task] += 1
            self.seconds[cell.task] = self.seconds.get(cell.task, 0.0) + card["timing"]["wall_seconds"]
        left = self.seconds_left()
        rest = f"; about {tables.duration(left)} left" if left else ""
        return f"{self._result(outcome)}{rest}"

    def seconds_left(self) -> float | None:
        """None if nothing is waiting or no cell has been trained yet."""
        trained, seconds = self.timed.total(), sum(self.seconds.values())
        if self.waiting.total() <= 0 or not trained:
            return None
        each = {task: self.seconds[task] / count for task, count in self.timed.items()}
        expected = sum(count * each.get(task, seconds / trained) for task, count in self.waiting.items())
        return expected * (time.monotonic() - self.began) / max(seconds, 1e-9)

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
        """Whether a card is older than this command, so that the cell was not run again."""
        return datetime.fromisoformat(created).timestamp() < self.started
