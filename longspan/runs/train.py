"""Train and score one cell: a finished one is answered from its card, an interrupted one goes on where it was."""

import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from lightning.fabric import Fabric
from torch.multiprocessing.spawn import ProcessExitedException

from longspan import datasets
from longspan.backbones.parameters import count
from longspan.backbones.slots import filled
from longspan.core import audit, meter, signals
from longspan.core.atomic import storage_errors, write_json
from longspan.core.environment import choose_device
from longspan.core.errors import LongspanError, RunFailed, UsageError
from longspan.core.lock import Busy, only_one
from longspan.core.parent import die_with_parent
from longspan.datasets.base import Splits
from longspan.efficiency.memory import is_out_of_memory
from longspan.results import card as cards
from longspan.results.code_identity import same_code
from longspan.results.store import Store
from longspan.runs.cell import Cell, RunPlan, as_json, first_line
from longspan.runs.describe import describe, files_of, nothing_reached, outcome
from longspan.runs.fabric import choose_precision, compile_long_runs, make_fabric
from longspan.training.display import Logs, progress_bar
from longspan.training.loop import Progress, train

BEGUN = "begun.json"  # what is known of a card before training, in the run's folder


def run(
    cell: Cell,
    *,
    out: Path | str = "out",
    data: Path | str | None = None,
    device: str = "auto",
    precision: str = "auto",
    devices: int = 1,
    real: bool = False,
    weights: bool = True,
    progress: bool = True,
) -> cards.Card:
    """Train and score one cell and put its card into `out/cards`, with the selected weights beside it if wanted."""
    plan = RunPlan.of(cell)
    out = Path(out)
    device = choose_device(device)
    precision = choose_precision(precision, device)
    store = Store(out / "cards")
    folder = out / "runs" / plan.folder_name
    data = None if data is None else Path(data)
    variant = _variant(plan, data, real)
    if (finished := _finished(store, plan, device, precision, variant)) is not None:
        if folder.exists():
            with contextlib.suppress(Busy), only_one(folder / "lock", f"the run {plan.title}", wait=False):
                tidy(folder)
        return finished
    recipe = plan.protocol.recipe
    if devices < 1 or recipe.batch_size // recipe.accumulate % devices:
        parts = f" in {recipe.accumulate} parts" if recipe.accumulate > 1 else ""
        raise UsageError(
            f"A batch of {recipe.batch_size}{parts} cannot be shared equally by {devices} devices; "
            "choose a number of devices that divides it."
        )
    splits = plan.task.splits(plan.protocol, data, real=real)
    with contextlib.ExitStack() as alone:
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            alone.enter_context(only_one(folder / "lock", f"the run {plan.title}"))
        if (
            finished := _finished(store, plan, device, precision, splits.variant)
        ) is not None:  # by the process that held the lock
            return finished
        if not _same_code_as_before(folder, plan):
            tidy(folder)  # checkpoints of a built-in whose outputs have changed since
        record = {"cell": as_json(asdict(cell)), "steps": recipe.steps, "code": plan.code}
        write_json(folder / "cell.json", record)
        fabric = make_fabric(device, precision, devices)
        arguments = (folder, store, device, precision, devices, weights, progress)
        if devices == 1:
            card = _train_cell(fabric, plan, splits, *arguments)
        else:
            card = _train_in_ranks(fabric, plan, data, arguments)
        tidy(folder)
    if card["status"] == "fail":
        raise RunFailed(f"{plan.title} failed: {card['reason']}")
    return card


def _train_in_ranks(fabric: Fabric, plan: RunPlan, data: Path | None, arguments: tuple) -> cards.Card:
    """Train in several processes. They save and stop together at a signal, and if one of them dies all end."""

    def pass_on(number: int) -> None:
        for rank in multiprocessing.active_children():
            if rank.pid is not None:
                os.kill(rank.pid, number)

    with signals.deferred(pass_on):
        try:
            found = fabric.launch(functools.partial(_train_in_each, cell=plan.cell, data=data, arguments=arguments))
        except ProcessExitedException as error:
            how = error.signal_name or f"exit code {error.exit_code}"
            reason = f"process {error.error_index} of {fabric.world_size} ended with {how}, which ended the others"
            return _card_of_the_dead(plan, reason, *arguments)
        if isinstance(found, int):  # the signal that stopped them
            raise signals.Stopped(found)
    return found


def _train_in_each(fabric: Fabric, *, cell: Cell, data: Path | None, arguments: tuple) -> cards.Card | int:
    """One of several processes: it imports the plug-in and maps the data itself, since neither should be pickled."""
    die_with_parent()
    try:
        with signals.raised():
            plan = RunPlan.of(cell)
            return _train_cell(fabric, plan, plan.task.splits(plan.protocol, data), *arguments)
    except signals.Stopped as stop:
        return stop.number


def _card_of_the_dead(plan: RunPlan, reason: str, folder: Path, store: Store, *_: object) -> cards.Card:
    """From what the first process wrote before it began to train."""
    if not (folder / BEGUN).exists():
        raise RunFailed(f"{plan.title} failed: {reason}")
    card = json.loads((folder / BEGUN).read_text()) | nothing_reached() | {"status": "fail", "reason": reason}
    return cards.read(store.add(card))


def _train_cell(
    fabric: Fabric,
    plan: RunPlan,
    splits: Splits,
    folder: Path,
    store: Store,
    device: str,
    precision: str,
    devices: int,
    keep_weights: bool,
    shown: bool,
) -> cards.Card:
    """Train in this process (or in each of several) and write the card, whether it went well or not."""
    started = time.perf_counter()
    meter.reset_peak_memory(device)
    energy, neighbours = meter.EnergyMeter(device), meter.Neighbours(device)
    with audit.reading() as read:
        model = plan.model()
    parameters, slots = count(model), filled(model)
    compile_long_runs(model, device, plan.protocol.recipe.steps)
    described = describe(plan, splits, parameters, slots, read, device, precision, devices)
    if fabric.is_global_zero:
        write_json(folder / BEGUN, described)  # for the card of a process that dies
    logs = Logs(folder) if fabric.is_global_zero else None
    trained, reason, state = None, None, Progress()
    recipe = plan.protocol.recipe
    with progress_bar(plan.title, recipe.steps, plan.task.meta.score, shown and fabric.is_global_zero) as bar:

        def watch(now: Progress, steps: int) -> None:
            nonlocal state
            state = now
            if now.step % recipe.evaluate_every == 0:
                neighbours.look()
            if logs is not None:
                logs.update(now)
            if bar is not None:
                bar(now, steps)

        try:
            with signals.raised((signal.SIGINT,)):
                trained = train(
                    *(plan.task, model, splits, plan.protocol),
                    fabric=fabric,
                    seed=plan.cell.seed,
                    folder=folder,
                    watch=watch,
                )
            state = trained.progress
        except signals.Stopped:
            raise
        except BaseException as error:  # a plug-in may raise anything at all, SystemExit and KeyboardInterrupt included
            reason = _reason(error, plan, device)
        finally:
            if logs is not None:
                logs.close()
    card = described | outcome(plan, splits, trained, state)
    card |= {
        "status": "ok" if trained else "fail",
        "reason": reason,
        "memory": {"peak_bytes": meter.peak_memory_bytes(device)},
        "energy": None if neighbours.seen else _whole_energy(energy, state),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    card["timing"]["shared"] = neighbours.seen  # by other work on the same GPU, so that the times say little
    card["timing"]["wall_seconds"] = round(max(state.total_seconds, time.perf_counter() - started), 3)
    if fabric.is_global_zero:
        card = cards.read(store.add(card, files_of(folder, model if keep_weights else None, trained)))
    return card


def _reason(error: BaseException, plan: RunPlan, device: str) -> str:
    """Why a cell failed, for its card; an error that is not the cell's own is raised again."""
    if is_out_of_memory(error):
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


def _variant(plan: RunPlan, data: Path | None, real: bool) -> str | None:
    """The kind of data a run would find on disk; None where that is not known yet."""
    found = datasets.get(plan.task.dataset).status(plan.protocol.data, root=data)
    return found.variant if found.ready and not (real and found.variant == "standin") else None


def _finished(store: Store, plan: RunPlan, device: str, precision: str, variant: str | None) -> cards.Card | None:
    """The newest successful card of this cell: same settings, same variant of the data, same code, same kind of
    device. Where the data are no longer on disk, a card of a run on real data will do."""
    identity, code = plan.identity, plan.code
    settings = identity.pop("settings") | {"device": device, "precision": precision}
    for card in reversed(store.find(**{name: identity[name] for name in ("task", "mechanism", "seed")})):
        same = all(card[name] == value for name, value in identity.items())
        same &= card["dataset"]["variant"] == variant if variant else card["dataset"]["variant"] != "standin"
        same &= all(card["settings"].get(name) == value for name, value in settings.items())
        if same and card["status"] == "ok" and same_code(card["settings"], code):
            return card
    return None


def _same_code_as_before(folder: Path, plan: RunPlan) -> bool:
    """Whether what an interrupted run left in the folder, if anything, was trained by the code that is here now."""
    path = folder / "cell.json"
    return not path.exists() or same_code(json.loads(path.read_text()).get("code", {}), plan.code)


def tidy(folder: Path) -> None:
    """Drop what only an unfinished run needs; logs stay."""
    for name in ("checkpoint-*.pt", "weights.safetensors", "predictions.npz", "cell.json", BEGUN, ".*.part"):
        for path in folder.glob(name):
            path.unlink(missing_ok=True)
    if folder.exists() and not any(path.name != "lock" for path in folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)
