"""From a card back to the network that was trained."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from longspan.core.environment import choose_device
from longspan.core.errors import CorruptFile, UsageError
from longspan.probes import TrainedModel
from longspan.results import card as cards
from longspan.runs.cell import Cell, RunPlan


def load(card: Path | str, *, attention: str | None = None) -> nn.Module:
    """The trained model behind a card, in evaluation mode on the CPU.

    `attention` says where a plug-in of yours is now, when it is not in the current folder: "path/mine.py:Mine".
    """
    card = Path(card)
    record = cards.read(card, "run")
    if "weights" not in record["files"]:
        raise UsageError(f"The card {card.name} has no weights beside it; run its cell again to get them.")
    model = plan_of(record, attention=attention).model()
    weights = card.with_name(record["files"]["weights"])
    try:
        model.load_state_dict(load_file(weights))
    except (OSError, RuntimeError, ValueError) as error:
        raise CorruptFile(f"The weights {weights.name} do not fit {card.name}; run its cell again.") from error
    except Exception as error:  # safetensors has an error class of its own
        raise CorruptFile(f"The weights {weights.name} cannot be read ({error}); run the cell again.") from error
    return model.eval()


def plan_of(record: cards.Card, *, attention: str | None = None) -> RunPlan:
    """The plan by which the run of a card was made."""
    cell = Cell(
        record["task"],
        attention or record["mechanism"],
        record["pattern"],
        record["protocol"],
        record["tier"],
        record["seed"],
        {name: tuple(value) if isinstance(value, list) else value for name, value in record["overrides"].items()},
    )
    plan = RunPlan.of(cell)
    if (version := record["task_version"]) != plan.task.meta.version:
        raise UsageError(
            f"The card is of {plan.task.name} version {version}, this package has {plan.task.meta.version}; "
            f"install longspan {record['code']['version']}."
        )
    return plan


def load_trained(
    card: Path | str, *, data: Path | str | None = None, device: str = "auto", attention: str | None = None
) -> TrainedModel:
    """The trained model of a run card with its task and protocol, on a device, as probes take it."""
    record = cards.read(card, "run")
    plan = plan_of(record, attention=attention)
    model = load(card, attention=attention).to(choose_device(device))
    where = None if data is None else Path(data)
    return TrainedModel(plan.task, plan.mechanism, plan.protocol, model, record, where)
