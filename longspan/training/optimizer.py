"""AdamW or Adam, and learning rates as plain functions of the step.

A mechanism may tag a parameter with `parameter.optim = {"weight_decay": 0.0, "max_learning_rate": 1e-3}`, as
state-space models need; everything else follows the recipe.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from longspan.tasks.base import Recipe

STATE = {"step", "exp_avg", "exp_avg_sq"}  # what both optimisers keep for a parameter


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of update number `step`, counted from 0: linear warm-up, from `initial_rate` on, times the schedule.

    `rsqrt` follows the convention of Long Range Arena, where the peak is learning_rate / sqrt(warmup); its `cosine` has
    the period of all steps and starts after the warm-up. The peak of `inverse_sqrt` is the learning rate itself.
    """
    rise = min(1.0, step / recipe.warmup) if recipe.warmup else 1.0
    past = max(0, step - recipe.warmup)
    left = 1 - past / max(1, recipe.steps - recipe.warmup)
    match recipe.schedule:
        case "rsqrt":
            decay = 1 / math.sqrt(max(step, recipe.warmup, 1))
        case "cosine":
            decay = 0.5 * (1 + math.cos(math.pi * (past / recipe.steps % 1)))
        case "linear":
            decay = left
        case "polynomial":
            decay = left**recipe.power
        case "inverse_sqrt":
            decay = math.sqrt(max(1, recipe.warmup) / max(1, step, recipe.warmup))
        case "exponential":
            decay = recipe.decay_rate ** max(0, step // recipe.decay_every - recipe.decay_after)
        case "constant":
            decay = 1.0
    return recipe.initial_rate * (1 - rise) + recipe.learning_rate * rise * decay


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    fused = bool(parameters) and all(p.device.type == "cuda" for p in parameters)
    kind = {"adamw": AdamW, "adam": Adam}[recipe.optimizer]
    optimizer = kind(
        _groups(parameters, recipe), lr=0.0, betas=recipe.betas, eps=recipe.eps, fused=fused, capturable=fused
    )
    for group in optimizer.param_groups if fused else ():
        group["lr"] = torch.zeros((), device=group["params"][0].device)  # a captured update reads it from this tensor
    return optimizer


def load_optimizer(optimizer: Optimizer, state: dict) -> None:
    """Go on from a saved state, which may come from another kind of device."""
    own = [{name: group[name] for name in ("lr", "fused", "capturable")} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        limited = min(rate, group["max_learning_rate"])
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(limited)
        else:
            group["lr"] = limited


def _groups(parameters: Iterable[nn.Parameter], recipe: Recipe) -> list[dict]:
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        wish = getattr(parameter, "optim", {})
        key = (wish.get("weight_decay", recipe.weight_decay), wish.get("max_learning_rate", math.inf))
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "max_learning_rate": cap} for (decay, cap), members in groups.items()
    ]
