"""The progress of a run, to be watched from outside: a small file that is rewritten every few seconds."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from longspan.core.atomic import write_json

PULSE = "progress.json"
EVERY = 5.0  # seconds


@dataclass(frozen=True)
class Pace:
    """Steps done, steps in all, and steps per second since the run was started or resumed here."""

    step: int
    steps: int
    rate: float | None = None

    @property
    def seconds_left(self) -> float | None:
        return (self.steps - self.step) / self.rate if self.rate else None


class Pulse:
    """Writes the pace of a run into its folder, at once and then every few seconds."""

    def __init__(self, folder: Path):
        self.path = folder / PULSE
        self._first: tuple[float, int] | None = None
        self._written = 0.0

    def __call__(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now, step
        elif now - self._written < EVERY:
            return
        since, first = self._first
        rate = (step - first) / (now - since) if step > first else None
        write_json(self.path, asdict(Pace(step, steps, rate)))
        self._written = now


def pace_of(folder: Path) -> Pace | None:
    """The last pace written; None if there is none or it is not sound."""
    try:
        found = json.loads((folder / PULSE).read_text())
        pace = Pace(int(found["step"]), int(found["steps"]), None if found["rate"] is None else float(found["rate"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return pace if 0 <= pace.step <= pace.steps and (pace.rate is None or pace.rate > 0) else None
