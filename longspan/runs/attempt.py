"""One attempt at a cell in one process: its network is built and trained, and its card written if that fails too."""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from longspan.backbones.parameters import count
from longspan.backbones.slots import filled
from longspan.core import audit, meter, signals
from longspan.core.atomic import write_json
from longspan.core.errors import Crowded, LongspanError, RunFailed
from longspan.core.lease import Lease
from longspan.core.pulse import Pulse
from longspan.datasets.base import Splits
from longspan.efficiency.memory import is_out_of_memory
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.runs.cell import RunPlan, first_line
from longspan.runs.checked import PluginCheck
from longspan.runs.describe import describe, files_of, outcome
from longspan.runs.fabric import compile_long_runs
from longspan.runs.folder import BEGUN, mark_shared
from longspan.runs.initial import start_from
from longspan.training.belongs import Belongs
from longspan.training.display import Logs, progress_bar
from longspan.training.loop import train
from longspan.training.progress import Progress

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Attempt:
    """Whose run it is, where its files are, and on what it runs."""

    belongs: Belongs
    folder: Path
    store: Store
    lease: Lease
    device: str
    precision: str
    devices: int
    weights: bool
    progress: bool
    checked: PluginCheck
    shared: bool  # others use the device, or did during an earlier part of the run
    shared_now: bool


def train_cell(fabric: "Fabric", plan: RunPlan, splits: Splits, attempt: Attempt) -> cards.Card:
    """Train in this process (or in each of several) and write the card, whether it went well or not."""
    device, writes = attempt.device, fabric.is_global_zero
    started = time.perf_counter()
    meter.reset_peak_memory(device)
    energy = meter.EnergyMeter(device)
    model, described = _built(plan, splits, attempt)
    if writes:
        write_json(attempt.folder / BEGUN, described)  # for the card of a process that dies
    trained, reason, watch = None, None, _Watch(plan, attempt, writes=writes)
    with watch.shown():
        try:
            with signals.raised((signal.SIGINT,)):
                trained = train(
                    *(plan.task, model, splits, plan.protocol),
                    fabric=fabric,
                    seed=plan.cell.seed,
                    folder=attempt.folder,
                    belongs=attempt.belongs,
                    watch=watch,
                )
            watch.progress = trained.progress
        except signals.Stopped:
            meter.synchronize(device)  # unfinished work on a shared GPU would end its other cells too
            raise
        except BaseException as error:  # a plug-in may raise anything at all, SystemExit and KeyboardInterrupt included
            watch.neighbours.look()
            crowded = attempt.devices == 1 and (attempt.shared_now or watch.neighbours.seen is True)
            reason = _reason(error, plan, device, crowded=crowded)
    progress, shared = watch.progress, watch.shared or watch.neighbours.seen
    card = described | outcome(plan, splits, trained, progress)
    card |= {
        "status": "ok" if trained else "fail",
        "reason": reason,
        "memory": {"peak_bytes": max(progress.peak_bytes, meter.peak_memory_bytes(device))},
        "energy": None if shared else _whole_energy(energy, progress),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    card["timing"]["shared"] = shared  # the times mean little
    card["timing"]["wall_seconds"] = round(max(progress.total_seconds, time.perf_counter() - started), 3)
    if writes:
        attempt.lease.check()  # two processes that run one cell must not both write a card
        card = cards.read(attempt.store.add(card, files_of(attempt.folder, trained, weights=attempt.weights)))
    return card


def _built(plan: RunPlan, splits: Splits, attempt: Attempt) -> tuple[nn.Module, cards.Card]:
    """The network, and the part of the card that is known before training."""
    recipe, checked = plan.protocol.recipe, attempt.checked
    with audit.reading() as read:
        model = plan.model()
    if recipe.initial_weights is not None:
        start_from(model, recipe.initial_weights)
    parameters, slots = count(model), filled(model)
    compile_long_runs(model, attempt.device, recipe)
    read = list(dict.fromkeys([*checked.read, *read]))
    how = (attempt.device, attempt.precision, attempt.devices)
    described = describe(plan, splits, parameters, slots, read, *how)
    return model, described | ({} if checked.conformance is None else {"conformance": checked.conformance})


class _Watch:
    """Follows a run step by step: its lease, other work on the device, the logs and the progress bar."""

    def __init__(self, plan: RunPlan, attempt: Attempt, *, writes: bool):
        self.progress, self.shared, self.neighbours = Progress(), attempt.shared, meter.Neighbours(attempt.device)
        self._plan, self._attempt, self._writes = plan, attempt, writes
        self._pulse = Pulse(attempt.folder)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Logs and a progress bar for as long as the block lasts."""
        plan = self._plan
        what = (plan.title, plan.protocol.recipe.steps, plan.task.meta.selection_metric)
        with (
            progress_bar(*what, self._attempt.progress and self._writes) as self._bar,
            contextlib.closing(Logs(self._attempt.folder)) as self._logs,
        ):
            yield

    def __call__(self, progress: Progress, steps: int) -> None:
        self.progress = progress
        if progress.step % self._plan.protocol.recipe.evaluate_every == 0:
            self._look_around()
        if self._writes:
            self._logs.update(progress)
            self._pulse(progress.step, steps)
        if self._bar is not None:
            self._bar(progress, steps)

    def _look_around(self) -> None:
        self._attempt.lease.check()
        self.neighbours.look()
        if self.neighbours.seen and not self.shared and self._writes:
            self.shared = True
            mark_shared(self._attempt.folder)


def _reason(error: BaseException, plan: RunPlan, device: str, *, crowded: bool) -> str:
    """Why a cell failed, for its card; an error that is not the cell's own is raised again."""
    if is_out_of_memory(error):
        if crowded:
            raise Crowded(
                f"{plan.title} was out of memory on {device}, which others use as well; what was saved of it is kept. "
                "Let it have the device to itself, or let fewer share it (--share)."
            ) from error
        recipe = plan.protocol.recipe
        return (
            f"out of memory on {device} at batch size {recipe.batch_size // recipe.accumulate}; "
            "choose a smaller one with --set recipe.batch_size, or a larger recipe.accumulate"
        )
    if isinstance(error, RunFailed):
        return str(error)
    if isinstance(error, LongspanError) or plan.is_builtin:
        raise error
    return first_line(error)


def _whole_energy(energy: meter.EnergyMeter, state: Progress) -> dict[str, float] | None:
    """Joules of the whole run: unknown for a run that was interrupted."""
    joules = None if state.resumed else energy.joules()
    return None if joules is None else {"joules": joules}
