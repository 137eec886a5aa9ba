"""What a run adds to its progress as it goes: the sums its steps report, seconds and peak memory."""

from typing import TYPE_CHECKING

import torch

from longspan.core.meter import Stopwatch, peak_memory_bytes
from longspan.tasks.base import StepResult
from longspan.training.progress import Progress

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class ProgressMeter:
    """Counts from its creation; the numbers enter the progress with `settle`, before an evaluation or a checkpoint."""

    def __init__(self, progress: Progress, fabric: "Fabric"):
        self.sums = TrainingSums(progress, fabric)
        self._progress, self._device = progress, str(fabric.device)
        self._seconds_before = progress.total_seconds
        self._whole, self._updates = Stopwatch(self._device), Stopwatch(self._device)

    def settle(self) -> None:
        progress = self._progress
        progress.train_seconds += self._updates.elapsed()
        progress.total_seconds = self._seconds_before + self._whole.elapsed()
        progress.peak_bytes = max(progress.peak_bytes, peak_memory_bytes(self._device))
        progress.train_sums, progress.train_count = self.sums.totals()

    def resume_updates(self) -> None:
        """Time updates again, without what was done since `settle`."""
        self._updates.restart()


class TrainingSums:
    """What a step reports, summed on the device since the last evaluation.

    Numbers are added one by one whether or not a run was interrupted, so that a resumed run is bitwise identical.
    """

    def __init__(self, progress: Progress, fabric: "Fabric"):
        self._fabric = fabric
        self._sums: dict[str, torch.Tensor] = {}
        self._count: int | torch.Tensor = 0
        if fabric.is_global_zero:  # what was saved is the total of all processes
            self._sums = {n: self._number(value) for n, value in progress.train_sums.items()}
            self._count = progress.train_count

    def add(self, result: StepResult) -> None:
        for name, value in result.sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.double()
        self._count = self._count + result.count

    def totals(self) -> tuple[dict[str, float], int]:
        """The sums and the number of examples, over all processes."""
        if self._fabric.world_size == 1:
            return {name: float(value) for name, value in self._sums.items()}, int(self._count)
        own = [*(self._sums[name] for name in sorted(self._sums)), self._number(float(self._count))]
        *totals, count = self._fabric.all_reduce(torch.stack(own), reduce_op="sum").tolist()  # type: ignore[union-attr]
        return dict(zip(sorted(self._sums), totals, strict=True)), int(count)

    def clear(self) -> None:
        self._sums, self._count = {}, 0

    def _number(self, value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self._fabric.device)
