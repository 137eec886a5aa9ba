"""The stage before a task: its network is trained on something else first, by the same loop, and starts from there.

Its checkpoints are in a folder of their own, so that a run interrupted in either stage resumes in that stage.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from longspan.datasets.base import Splits
from longspan.tasks.base import Protocol, Recipe, Task
from longspan.training.belongs import Belongs

if TYPE_CHECKING:
    from lightning.fabric import Fabric

PRETRAINING = "pretraining"  # the folder of the stage


def pretrain(
    train: Callable[..., Any],
    task: Task,
    model: nn.Module,
    splits: Splits,
    protocol: Protocol,
    *,
    fabric: "Fabric",
    seed: int,
    folder: Path,
    belongs: Belongs,
) -> float:
    """Train the weights of `model` in the pretraining stage of `task`, and return how many seconds that took.

    Weights that the stage does not use, such as the head, stay as they are.
    """
    stage = task.pretraining(protocol)
    unused = [parameter for name, parameter in model.named_parameters() if name.startswith("head.")]
    whole, model.whole = getattr(model, "whole", False), True  # type: ignore[assignment]
    for parameter in unused:
        parameter.requires_grad_(False)
    rules = replace(protocol, recipe=recipe_of(protocol.recipe))
    done = train(stage, stage.around(model), splits, rules, fabric=fabric, seed=seed, folder=folder, belongs=belongs)
    model.whole = whole  # type: ignore[assignment]
    for parameter in unused:
        parameter.requires_grad_(True)
    if fabric.is_global_zero:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in sorted(done.valid.metrics.items()))
        print(f"Pretrained for {rules.recipe.steps:,} steps; on validation: {scores}.", file=sys.stderr, flush=True)
    return done.progress.total_seconds


def recipe_of(recipe: Recipe) -> Recipe:
    """The recipe of the stage: that of the task except for its length and rate, and with the last weights selected."""
    steps = recipe.pretraining_steps
    return replace(
        recipe,
        steps=steps,
        learning_rate=recipe.pretraining_rate or recipe.learning_rate,
        warmup=recipe.warmup if recipe.pretraining_warmup is None else recipe.pretraining_warmup,
        evaluate_every=max(1, steps // 10),
        selection="last",
        patience=None,
        also_at=None,
        label_smoothing=0.0,
        pretraining_steps=0,
        give_up_at=None,
    )
