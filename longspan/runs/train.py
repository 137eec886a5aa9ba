"""Train and score one cell: a finished one is answered from its card, an interrupted one goes on where it was."""

import contextlib
import functools
import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch.multiprocessing.spawn import ProcessExitedException

from longspan.backbones.parameters import without_numbers
from longspan.core import litter, mirror, signals
from longspan.core.atomic import storage_errors
from longspan.core.environment import choose_device, hardware
from longspan.core.errors import RunFailed, UsageError
from longspan.core.lease import LeaseLost
from longspan.core.lock import Busy, only_one
from longspan.core.parent import die_with_parent
from longspan.core.threads import one_thread
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.runs.answered import answer
from longspan.runs.attempt import Attempt, train_cell
from longspan.runs.cell import Cell, RunPlan
from longspan.runs.checked import check_plugin
from longspan.runs.describe import nothing_reached
from longspan.runs.fabric import choose_precision, make_fabric
from longspan.runs.folder import BEGUN, begin, belonging, folder_name, tidy
from longspan.training.parallel import check_parallel

if TYPE_CHECKING:
    from lightning.fabric import Fabric


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
                card = train_cell(fabric, plan, splits, attempt)
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
            return train_cell(fabric, plan, plan.task.splits(plan.protocol, data, real=real), attempt)
    except signals.Stopped as stop:
        return stop.number


def _card_of_the_dead(plan: RunPlan, reason: str, attempt: Attempt) -> cards.Card:
    """The card of a run that died, from what its first process wrote before it began to train."""
    begun = attempt.folder / BEGUN
    if not begun.exists():
        raise RunFailed(f"{plan.title} failed: {reason}")
    card = json.loads(begun.read_text()) | nothing_reached() | {"status": "fail", "reason": reason}
    return cards.read(attempt.store.add(card))
