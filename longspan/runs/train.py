"""Train and score one cell: a finished one is answered from its card, an interrupted one goes on where it was."""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torch.multiprocessing.spawn import ProcessExitedException

from longspan.backbones.parameters import count, without_numbers
from longspan.backbones.slots import filled
from longspan.core import audit, litter, meter, mirror, signals
from longspan.core.atomic import storage_errors, write_json
from longspan.core.environment import choose_device, hardware
from longspan.core.errors import Crowded, LongspanError, RunFailed, UsageError
from longspan.core.lease import Lease, LeaseLost
from longspan.core.lock import Busy, only_one
from longspan.core.parent import die_with_parent
from longspan.core.pulse import Pulse
from longspan.core.threads import one_thread
from longspan.datasets.base import Splits
from longspan.efficiency.memory import is_out_of_memory
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.runs.answered import answer
from longspan.runs.cell import Cell, RunPlan, first_line
from longspan.runs.checked import PluginCheck, check_plugin
from longspan.runs.describe import describe, files_of, nothing_reached, outcome
from longspan.runs.fabric import choose_precision, compile_long_runs, make_fabric
from longspan.runs.folder import BEGUN, begin, belonging, folder_name, mark_shared, tidy
from longspan.runs.initial import start_from
from longspan.training.belongs import Belongs
from longspan.training.display import Logs, progress_bar
from longspan.training.loop import train
from longspan.training.parallel import check_parallel
from longspan.training.progress import Progress

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Attempt:
    """One attempt at a cell: whose run it is, where its files are, and on what it runs."""

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


def run(
    cell: Cell,
    *,
    out: Path | str = "out",
    data: Path | str | None = None,
    device: str = "auto",
    precision: str = "auto",
    devices: int = 1,
    parallel: str | None = None,
    real: bool = False,
    weights: bool = True,
    progress: bool = True,
    shared: bool = False,
) -> cards.Card:
    """Train and score one cell and put its card into `out/cards`, with the selected weights beside it if wanted.

    `parallel` says how several devices share the work, in place of `recipe.parallel`. `shared` says that other cells
    run on the same device, so that the card's times mean little.
    """
    plan = _planned(cell, parallel)
    out = mirror.local(out)
    device = choose_device(device)
    precision = choose_precision(precision, device)
    _check_share(plan, devices)
    data = None if data is None else mirror.local(data)
    splits = plan.task.splits(plan.protocol, data, real=real)
    belongs = belonging(plan, splits, device, precision)
    store = Store(out / "cards")
    store.sweep()
    folder = out / "runs" / folder_name(plan, belongs)
    answered = functools.partial(answer, store, plan, splits, device, precision, weights=weights)
    if (card := answered()) is not None:
        if folder.exists():
            with contextlib.suppress(Busy), only_one(folder / "lock", f"the run {plan.title}", wait=False):
                tidy(folder)  # unless another process is running it, which tidies up itself
        return card
    with contextlib.ExitStack() as alone:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lease = alone.enter_context(only_one(folder / "lock", f"the run {plan.title}"))
        if (card := answered()) is not None:  # by the process that held the lock
            return card
        litter.sweep(folder)
        mirror.pull_files(folder, lambda name: not name.endswith(".lease"))
        shared_ever = begin(folder, cell, plan.protocol.recipe.steps, hardware(device), shared=shared)
        alone.enter_context(_threads(plan, device))
        attempt = Attempt(
            belongs=belongs,
            folder=folder,
            store=store,
            lease=lease,
            device=device,
            precision=precision,
            devices=devices,
            weights=weights,
            progress=progress,
            checked=check_plugin(plan, out),
            shared=shared_ever,
            shared_now=shared,
        )
        fabric = make_fabric(device, precision, devices)
        try:
            if devices == 1:
                card = _train_cell(fabric, plan, splits, attempt)
            else:
                card = _train_in_ranks(fabric, plan, data, real, parallel, attempt)
        except LeaseLost as lost:
            print(f"{lost} The card will be theirs.", file=sys.stderr, flush=True)
            card = None
        else:
            tidy(folder)
    if card is None:
        how = {"device": device, "precision": precision, "devices": devices, "parallel": parallel}
        how |= {"real": real, "progress": progress}
        return run(cell, out=out, data=data, weights=weights, shared=shared, **how)
    if card["status"] == "fail":
        raise RunFailed(f"{plan.title} failed: {card['reason']}")
    return card


def _threads(plan: RunPlan, device: str) -> contextlib.AbstractContextManager[None]:
    """Smoke networks are too small for several threads; on one, their scores do not depend on the number of cores."""
    asked = "OMP_NUM_THREADS" in os.environ
    return one_thread() if (plan.cell.tier, device) == ("smoke", "cpu") and not asked else contextlib.nullcontext()


def _planned(cell: Cell, parallel: str | None) -> RunPlan:
    """The plan of a cell whose devices share the work in this way; it changes no score, so it is no override."""
    plan = RunPlan.of(cell)
    if parallel is None:
        return plan
    return replace(plan, protocol=plan.protocol.override({"recipe.parallel": parallel}))


def _check_share(plan: RunPlan, devices: int) -> None:
    recipe = plan.protocol.recipe
    if devices > 1 and recipe.parallel != "ddp":
        check_parallel(plan.task, without_numbers(plan.model), recipe, devices)
    if devices > 1 and recipe.parallel == "context":
        return  # every device has all rows
    if devices < 1 or recipe.batch_size // recipe.accumulate % devices:
        parts = f" in {recipe.accumulate} parts" if recipe.accumulate > 1 else ""
        raise UsageError(
            f"A batch of {recipe.batch_size}{parts} cannot be shared equally by {devices} devices; "
            "choose a number of devices that divides it."
        )


def _train_in_ranks(
    fabric: "Fabric", plan: RunPlan, data: Path | None, real: bool, parallel: str | None, attempt: Attempt
) -> cards.Card:
    """Train in several processes. They save and stop together at a signal, and if one of them dies all end."""

    def pass_on(number: int) -> None:
        for rank in multiprocessing.active_children():
            if rank.pid is not None:
                os.kill(rank.pid, number)

    with signals.deferred(pass_on):
        try:
            what = {"cell": plan.cell, "data": data, "real": real, "parallel": parallel, "attempt": attempt}
            found = fabric.launch(functools.partial(_train_in_each, **what))
        except ProcessExitedException as error:
            how = error.signal_name or f"exit code {error.exit_code}"
            reason = f"process {error.error_index} of {fabric.world_size} ended with {how}, which ended the others"
            return _card_of_the_dead(plan, reason, attempt)
        if isinstance(found, int):  # the signal that stopped them
            raise signals.Stopped(found)
    return found


def _train_in_each(
    fabric: "Fabric", *, cell: Cell, data: Path | None, real: bool, parallel: str | None, attempt: Attempt
) -> cards.Card | int:
    """One of several processes: it imports the plug-in and maps the data itself, since neither should be pickled."""
    die_with_parent()
    try:
        with signals.raised():
            plan = _planned(cell, parallel)
            return _train_cell(fabric, plan, plan.task.splits(plan.protocol, data, real=real), attempt)
    except signals.Stopped as stop:
        return stop.number


def _card_of_the_dead(plan: RunPlan, reason: str, attempt: Attempt) -> cards.Card:
    """The card of a run that died, from what its first process wrote before it began to train."""
    begun = attempt.folder / BEGUN
    if not begun.exists():
        raise RunFailed(f"{plan.title} failed: {reason}")
    card = json.loads(begun.read_text()) | nothing_reached() | {"status": "fail", "reason": reason}
    return cards.read(attempt.store.add(card))


def _train_cell(fabric: "Fabric", plan: RunPlan, splits: Splits, attempt: Attempt) -> cards.Card:
    """Train in this process (or in each of several) and write the card, whether it went well or not."""
    folder, device, devices, checked = attempt.folder, attempt.device, attempt.devices, attempt.checked
    shared = attempt.shared
    started = time.perf_counter()
    meter.reset_peak_memory(device)
    energy, neighbours = meter.EnergyMeter(device), meter.Neighbours(device)
    with audit.reading() as read:
        model = plan.model()
    if plan.protocol.recipe.initial_weights is not None:
        start_from(model, plan.protocol.recipe.initial_weights)
    parameters, slots = count(model), filled(model)
    compile_long_runs(model, device, plan.protocol.recipe)
    read = list(dict.fromkeys([*checked.read, *read]))
    described = describe(plan, splits, parameters, slots, read, device, attempt.precision, devices)
    described |= {} if checked.conformance is None else {"conformance": checked.conformance}
    if fabric.is_global_zero:
        write_json(folder / BEGUN, described)  # for the card of a process that dies
    logs = Logs(folder) if fabric.is_global_zero else None
    pulse = Pulse(folder)
    trained, reason, state = None, None, Progress()
    recipe = plan.protocol.recipe
    with progress_bar(
        plan.title, recipe.steps, plan.task.meta.selection_metric, attempt.progress and fabric.is_global_zero
    ) as bar:

        def watch(now: Progress, steps: int) -> None:
            nonlocal state, shared
            state = now
            if now.step % recipe.evaluate_every == 0:
                attempt.lease.check()
                neighbours.look()
                if neighbours.seen and not shared and fabric.is_global_zero:
                    shared = True
                    mark_shared(folder)
            if logs is not None:
                logs.update(now)
                pulse(now.step, steps)
            if bar is not None:
                bar(now, steps)

        try:
            with signals.raised((signal.SIGINT,)):
                trained = train(
                    *(plan.task, model, splits, plan.protocol),
                    fabric=fabric,
                    seed=plan.cell.seed,
                    folder=folder,
                    belongs=attempt.belongs,
                    watch=watch,
                )
            state = trained.progress
        except signals.Stopped:
            meter.synchronize(device)  # unfinished work on a shared GPU would end its other cells too
            raise
        except BaseException as error:  # a plug-in may raise anything at all, SystemExit and KeyboardInterrupt included
            neighbours.look()
            reason = _reason(
                error, plan, device, crowded=devices == 1 and (attempt.shared_now or neighbours.seen is True)
            )
        finally:
            if logs is not None:
                logs.close()
    card = described | outcome(plan, splits, trained, state)
    card |= {
        "status": "ok" if trained else "fail",
        "reason": reason,
        "memory": {"peak_bytes": max(state.peak_bytes, meter.peak_memory_bytes(device))},
        "energy": None if shared or neighbours.seen else _whole_energy(energy, state),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    card["timing"]["shared"] = shared or neighbours.seen  # the times mean little
    card["timing"]["wall_seconds"] = round(max(state.total_seconds, time.perf_counter() - started), 3)
    if fabric.is_global_zero:
        attempt.lease.check()  # two processes that run one cell must not both write a card
        card = cards.read(attempt.store.add(card, files_of(folder, trained, weights=attempt.weights)))
    return card


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
