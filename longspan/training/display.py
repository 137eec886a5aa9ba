"""What a person sees of a training run: a bar with loss, accuracy, speed and time left, and log files to plot from."""

import csv
import io
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.core.atomic import write_text
from longspan.training.progress import Progress


@contextmanager
def progress_bar(title: str, steps: int, score: str, shown: bool = True):
    """Yields a watcher for the loop: a progress bar, or an occasional line if standard error is not a terminal."""
    if not shown:
        yield None
        return
    if not sys.stderr.isatty():
        yield LineFromTimeToTime(title, score)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from longspan.core.screen import Screen

    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TextColumn("{task.fields[speed]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Screen(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=steps, figures="", speed="")
        started, first = time.perf_counter(), None

        def watch(progress: Any, steps: int) -> None:
            nonlocal first
            first = progress.step if first is None else first  # a resumed run does not begin at 0
            rate = (progress.step - first) / max(1e-9, time.perf_counter() - started)
            bars.update(bar, completed=progress.step, figures=_figures(progress, score), speed=f"{rate:.1f} steps/s")

        yield watch


class LineFromTimeToTime:
    """A watcher that reports the progress of a long run, for log files."""

    EVERY = 60.0  # seconds

    def __init__(self, title: str, score: str):
        self.title, self.score = title, score
        self.began = self.said = time.monotonic()
        self.first: int | None = None

    def __call__(self, progress: Progress, steps: int) -> None:
        now = time.monotonic()
        self.first = progress.step if self.first is None else self.first  # a resumed run does not begin at 0
        if now - self.said < self.EVERY or progress.step <= self.first:
            return
        self.said = now
        rate = (progress.step - self.first) / (now - self.began)
        left = (steps - progress.step) / rate / 60
        words = [f"step {progress.step:,} of {steps:,}", _figures(progress, self.score).replace("  ", ", ")]
        words += [f"{rate:.1f} steps/s", f"{left:.0f} min left" if left >= 1 else "less than a minute left"]
        print(f"{self.title}: {', '.join(word for word in words if word)}", file=sys.stderr, flush=True)


def _figures(progress: Progress, score: str) -> str:
    if not progress.curve:
        return ""
    last = progress.curve[-1]
    return f"loss {last['train_loss']:.3f}  valid {score} {last[f'valid_{score}']:.3f}"


class Logs:
    """`log.csv` and TensorBoard events in the run's folder, always in step with the learning curve."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._written = 0
        self._events = None

    def update(self, progress: Progress) -> None:
        if len(progress.curve) == self._written:
            return
        rows = io.StringIO()
        names = sorted({name for point in progress.curve for name in point}, key=lambda n: (n != "step", n))
        table = csv.DictWriter(rows, names)
        table.writeheader()
        table.writerows(progress.curve)
        write_text(self.folder / "log.csv", rows.getvalue())
        self._to_tensorboard(progress.curve[self._written :])
        self._written = len(progress.curve)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _to_tensorboard(self, points: list[dict[str, float]]) -> None:
        from longspan.core.environment import installed

        if installed("tensorboard") is None:
            return
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.folder / "tensorboard"), purge_step=int(points[0]["step"]))
        for point in points:
            for name, value in point.items():
                if name != "step":
                    self._events.add_scalar(name, value, int(point["step"]))
