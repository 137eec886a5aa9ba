"""From a card back to the network that was trained.

A card is data. Loading one runs no code that it names: mechanisms, tasks and datasets are those of this package, unless
the caller passes a file (`attention="path/mine.py:Mine"`) or trusts what the card names (`trust=True`).
"""

import contextlib
from pathlib import Path
from typing import Any

from torch import nn

from longspan.core.environment import choose_device
from longspan.core.errors import DataMissing, UsageError
from longspan.core.mirror import local
from longspan.core.registry import builtins_only
from longspan.core.spec import Spec
from longspan.datasets.base import Splits
from longspan.probes import TrainedModel
from longspan.results import card as cards
from longspan.results.code_identity import code_of
from longspan.runs.cell import Cell, RunPlan
from longspan.runs.fingerprint import is_builtin, source_hash
from longspan.runs.weights import filled_with
from longspan.tasks import Task


def load(
    card: Path | str,
    *,
    data: Path | str | None = None,
    device: str = "cpu",
    attention: str | None = None,
    trust: bool = False,
) -> Any:
    """The trained model behind a card, in evaluation mode, or what its task makes of it for users.

    Most tasks give the network itself. Others give an object with methods for using it, as in
    `longspan.load(card).speak("Hello.")`; where that needs the data of the run, they are looked for in `data`.

    No code that the card names is run. Where its mechanism is a plug-in, `attention` names your own copy of the file,
    "path/mine.py:Mine", which must be the code of the run; its hash is on the card. `trust=True` runs what the card
    names, from the current folder, even if that code was edited since: only for cards whose code you know.
    """
    record = cards.read(card, "run")
    where = choose_device(device)
    with trusted(attention, trust=trust):
        plan = plan_of(record, attention=attention, trust=trust)
        model = network(card, attention=attention, trust=trust).to(where)
        if type(plan.task).user_object is Task.user_object:
            return model
        return plan.task.user_object(model, plan.protocol, _splits(plan, record, data), where)


def _splits(plan: RunPlan, record: cards.Card, data: Path | str | None) -> Splits | None:
    """The exact data of the run, if they are here."""
    try:
        splits = plan.task.splits(plan.protocol, None if data is None else local(data))
    except DataMissing:
        return None
    return splits if splits.sha256 == record["dataset"]["sha256"] else None


def network(card: Path | str, *, attention: str | None = None, trust: bool = False) -> nn.Module:
    """The trained network of a card, in evaluation mode on the CPU."""
    card = Path(card)
    record = cards.read(card, "run")
    if "weights" not in record["files"]:
        raise UsageError(f"The card {card.name} has no weights beside it; run its cell again to get them.")
    weights, recorded = card.with_name(record["files"]["weights"]), record.get("files_sha256", {}).get("weights")
    with trusted(attention, trust=trust):
        return filled_with(plan_of(record, attention=attention, trust=trust), weights, recorded).eval()


def trusted(attention: str | None = None, *, trust: bool = False) -> contextlib.AbstractContextManager[None]:
    """Inside, names from a card run no code except that of this package and the mechanism the caller passed."""
    if trust:
        return contextlib.nullcontext()
    return builtins_only(*([Spec.parse(attention).target] if attention else []))


def plan_of(record: cards.Card, *, attention: str | None = None, trust: bool = False) -> RunPlan:
    """The plan of the run behind a card."""
    cell = Cell(
        record["task"],
        attention or record["mechanism"],
        record["pattern"],
        record["protocol"],
        record["tier"],
        record["seed"],
        {name: tuple(value) if isinstance(value, list) else value for name, value in record["overrides"].items()},
    )
    with trusted(attention, trust=trust):
        plan = RunPlan.of(cell, presets=False)
    if (version := record["task_version"]) != plan.task.meta.version:
        raise UsageError(
            f"The card is of {plan.task.name} version {version}, this package has {plan.task.meta.version}; "
            f"install longspan {record['code']['version']}."
        )
    if not trust:
        _check_code(record, plan)
    return plan


def _check_code(record: cards.Card, plan: RunPlan) -> None:
    """Refuse weights that were trained with other code: in this code they would mean something else."""
    mechanism, recorded, found = plan.mechanism, code_of(record), own_code(plan)
    if is_builtin(mechanism) and str(mechanism) == record["mechanism"]:
        version, here = recorded.get("mechanism_version"), mechanism.meta.version
        if version != here:
            raise UsageError(
                f"The card is of {mechanism} version {version}, this package has {here}; install longspan "
                f"{record['code']['version']}, or pass trust=True (--trust) to use the code that is here."
            )
    elif not found or found["mechanism_sha256"] != recorded.get("mechanism_sha256"):
        then, now = recorded.get("mechanism_sha256", "none"), found.get("mechanism_sha256", "none")
        raise UsageError(
            f"{mechanism} is not the code of the run: the card is of {record['mechanism']} with the source hash "
            f"{then[:12]}, here it is {now[:12]}. Pass the file as it was then, or trust=True (--trust) to use this."
        )


def own_code(plan: RunPlan) -> dict[str, str]:
    """The source hash of a plug-in; nothing for a built-in."""
    return {} if is_builtin(plan.mechanism) else {"mechanism_sha256": source_hash(plan.mechanism.cls)}


def load_trained(
    card: Path | str,
    *,
    data: Path | str | None = None,
    device: str = "auto",
    attention: str | None = None,
    trust: bool = False,
) -> TrainedModel:
    """The trained model of a run card with its task and protocol, on a device, as probes take it."""
    record = cards.read(card, "run")
    plan = plan_of(record, attention=attention, trust=trust)
    model = network(card, attention=attention, trust=trust).to(choose_device(device))
    where = None if data is None else local(data)
    return TrainedModel(plan.task, plan.mechanism, plan.protocol, model, record, where, own_code(plan))
