"""AdamW with decoupled decay, and learning rates as plain functions of the step.

A mechanism may tag a parameter with `parameter.optim = {"weight_decay": 0.0, "max_learning_rate": 1e-3}`, as
state-space models need; everything else follows the recipe.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from longspan.tasks.base import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of update number `step`, counted from 0: linear warm-up times the schedule.

    `rsqrt` follows the convention of Long Range Arena, where the peak is learning_rate / sqrt(warmup); its `cosine` has
    the period of all steps and starts after the warm-up.
    """
    rise = min(1.0, step / recipe.warmup) if recipe.warmup else 1.0
    past = max(0, step - recipe.warmup)
    match recipe.schedule:
        case "rsqrt":
            decay = 1 / math.sqrt(max(step, recipe.warmup, 1))
        case "cosine":
            decay = 0.5 * (1 + math.cos(math.pi * (past / recipe.steps % 1)))
        case "linear":
            decay = 1 - past / max(1, recipe.steps - recipe.warmup)
        case "constant":
            decay = 1.0
    return recipe.learning_rate * rise * decay


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = bool(parameters) and all(p.device.type == "cuda" for p in parameters)
    return AdamW(_groups(parameters, recipe), lr=0.0, betas=recipe.betas, eps=recipe.eps, fused=fused)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = min(rate, group["max_learning_rate"])


def _groups(parameters: Iterable[nn.Parameter], recipe: Recipe) -> list[dict]:
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        wish = getattr(parameter, "optim", {})
        key = (wish.get("weight_decay", recipe.weight_decay), wish.get("max_learning_rate", math.inf))
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "max_learning_rate": cap} for (decay, cap), members in groups.items()
    ]
