"""What a cell would take on this machine: a few real steps are timed, the rest is arithmetic."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from longspan import datasets
from longspan.backbones.parameters import count
from longspan.core import meter
from longspan.core.environment import choose_device
from longspan.runs.cell import Cell, RunPlan
from longspan.runs.fabric import choose_precision, make_fabric

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Estimate:
    """What a cell would take on this device."""

    seconds: float
    memory_bytes: int
    parameters: int
    steps: int
    note: str


def estimate(cell: Cell, *, device: str = "auto", precision: str = "auto") -> Estimate:
    """Time a few real steps on made-up rows of full length, with as much of the batch as a second allows."""
    plan = RunPlan.of(cell)
    device = choose_device(device)
    fabric = make_fabric(device, choose_precision(precision, device), 1)
    model = plan.model().to(fabric.device)
    parameters, recipe = count(model)["total"], plan.protocol.recipe
    batch, part = 1, recipe.batch_size // recipe.accumulate
    seconds, activations = _one_step(plan, model, fabric, batch)
    while batch < part and seconds < 0.5:
        batch = min(part, batch * 4)
        seconds, activations = _one_step(plan, model, fabric, batch)
    scale = recipe.batch_size / batch
    examples = datasets.get(plan.task.dataset).counts(plan.protocol.data)
    validating, scoring = plan.task.passes(plan.protocol)
    mean, also = recipe.selection == "mean_of_last", recipe.also_at is not None and recipe.also_at < recipe.steps
    passes = (len(recipe.evaluations()) + mean) * examples["valid"] * validating
    passes += (1 + also) * examples["test"] * scoring
    total = (
        seconds * scale * (recipe.pretraining_steps + recipe.steps + passes / recipe.batch_size / 3)
    )  # a forward pass is a third of a step
    memory = int(activations * part / batch) + 16 * parameters  # weights, gradients and two moments in fp32
    note = f"from one step of {batch} of {recipe.batch_size} examples at full length on {device}"
    return Estimate(total, memory, parameters, recipe.steps, note)


def _one_step(plan: RunPlan, model: nn.Module, fabric: "Fabric", batch: int) -> tuple[float, int]:
    """Seconds of one training step (the better of two), and the bytes it keeps for its backward pass."""
    feed = plan.task.feed(plan.task.made_up(plan.protocol, batch), plan.protocol, fabric.device)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    times = []
    for _ in range(2):
        watch = meter.Stopwatch(str(fabric.device))
        kept.clear()
        with fabric.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = plan.task.loss(model, feed.batch(np.arange(batch))).loss
        loss.backward()
        model.zero_grad(set_to_none=True)
        times.append(watch.elapsed())
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return min(times), sum(size for pointer, size in kept.items() if pointer not in weights)
