"""When a run in progress is saved: every few seconds, or less often, so that 95 % of the time is left for training."""

from typing import TYPE_CHECKING

from longspan.core.meter import Stopwatch
from longspan.training.progress import Progress
from longspan.training.resume import Resumable
from longspan.training.steps import Steps

if TYPE_CHECKING:
    from lightning.fabric import Fabric

LEAST_TRAINING = 20  # times as long as saving takes


class Autosave:
    """Saves a run whenever asked, and says when the next checkpoint is due; below 0 seconds, after every step."""

    def __init__(self, resumable: Resumable, fabric: "Fabric", every_seconds: float):
        self._resumable, self._writes, self._every = resumable, fabric.is_global_zero, every_seconds
        self._pause, self._since = every_seconds, Stopwatch("cpu")

    @property
    def is_due(self) -> bool:
        return self._since.elapsed() > self._pause

    def save(self, progress: Progress, steps: Steps) -> None:
        """Every process must call this; one of them writes the checkpoint."""
        self._since.restart()
        state = self._resumable.state(progress, steps.carry())
        if self._writes:
            self._resumable.save(state)
        if self._every > 0:
            self._pause = max(self._every, LEAST_TRAINING * self._since.elapsed())
        self._since.restart()
