"""AdamW or Adam, and learning rates as plain functions of the step.

A mechanism may tag a parameter with `parameter.optim = {"weight_decay": 0.0, "max_learning_rate": 1e-3}`, or have it
trained at a `ratio` of the rate; everything else follows the recipe. State-space models tag the parameters of their
dynamics with a `kind`, "ssm" or "dt": a recipe with `ssm_learning_rate` has a base rate for these, which replaces the
cap and follows the same schedule. Under `decay="weights"`, parameters of fewer than two dimensions, embeddings and
positions have no weight decay, as in S4.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Adam, AdamW, Optimizer

from longspan.tasks.base import Recipe
from longspan.training.sharding import share_as

STATE = {"step", "exp_avg", "exp_avg_sq"}  # what both optimisers keep for a parameter


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of update number `step`, counted from 0: linear warm-up from `initial_rate`, times the schedule.

    `rsqrt` follows the convention of Long Range Arena, where the peak is learning_rate / sqrt(warmup); its `cosine` has
    a period of all steps and starts after the warm-up, while `cosine_to_zero` reaches 0 at the last step. The peak of
    `inverse_sqrt` is the learning rate itself.
    """
    rise = min(1.0, step / recipe.warmup) ** recipe.warmup_power if recipe.warmup else 1.0
    past = max(0, step - recipe.warmup)
    left = 1 - past / max(1, recipe.steps - recipe.warmup)
    match recipe.schedule:
        case "rsqrt":
            decay = 1 / math.sqrt(max(step, recipe.warmup, 1))
        case "cosine":
            decay = 0.5 * (1 + math.cos(math.pi * (past / recipe.steps % 1)))
        case "cosine_to_zero":
            decay = 0.5 * (1 + math.cos(math.pi * (1 - left)))
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
    embeddings = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    fused = bool(parameters) and all(p.device.type == "cuda" and not isinstance(p, DTensor) for p in parameters)
    kind = {"adamw": AdamW, "adam": Adam}[recipe.optimizer]
    optimizer = kind(
        _groups(parameters, embeddings, recipe),
        lr=0.0,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=fused,
        capturable=fused,
    )
    for group in optimizer.param_groups if fused else ():
        group["lr"] = torch.zeros((), device=group["params"][0].device)  # a captured update reads it from this tensor
    return optimizer


def load_optimizer(optimizer: Optimizer, state: dict) -> None:
    """Load a saved state, which may come from another kind or number of devices."""
    own = [{name: group[name] for name in ("lr", "fused", "capturable")} for group in optimizer.param_groups]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: value if name == "step" else share_as(value, parameter) for name, value in own_state.items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if (own_state := state["state"].get(number)) is not None
    }
    optimizer.load_state_dict({**state, "state": moments})
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        limited = min(rate * group["ratio"], group["max_learning_rate"])
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(limited)
        else:
            group["lr"] = limited


def _groups(parameters: Iterable[nn.Parameter], embeddings: set[int], recipe: Recipe) -> list[dict]:
    groups: dict[tuple[float, float, float], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        wish = getattr(parameter, "optim", {})
        ratio, cap = wish.get("ratio", 1.0), wish.get("max_learning_rate", math.inf)
        if (own := _own_rate(wish.get("kind"), recipe)) is not None:
            ratio, cap = own / recipe.learning_rate, math.inf
        spared = parameter.ndim < 2 or id(parameter) in embeddings or wish.get("kind") == "embedding"
        decay = 0.0 if recipe.decay == "weights" and spared else recipe.weight_decay
        groups.setdefault((wish.get("weight_decay", decay), cap, ratio), []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "max_learning_rate": cap, "ratio": ratio}
        for (decay, cap, ratio), members in groups.items()
    ]


def _own_rate(kind: str | None, recipe: Recipe) -> float | None:
    """The base rate that a recipe has for parameters of this kind, if it has one."""
    if kind == "dt" and recipe.dt_learning_rate is not None:
        return recipe.dt_learning_rate
    return recipe.ssm_learning_rate if kind in ("ssm", "dt") else None
