"""A small ListOps in memory and the loop around it: a whole training run in a fraction of a second."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from longspan import attentions, tasks
from longspan.core.seeding import seed_everything
from longspan.datasets import listops
from longspan.datasets.base import Split, Splits
from longspan.runs.fabric import make_fabric
from longspan.training.loop import Trained, train

TASK = tasks.get("listops")
RULES = TASK.protocol("longspan", "smoke").override(
    {"data.longer_than": 5, "data.shorter_than": 20, "model.dim": 8, "model.layers": 1, "model.mlp": 8}
    | {"recipe.steps": 12, "recipe.batch_size": 4, "recipe.evaluate_every": 5, "recipe.warmup": 2}
)


def small_splits() -> Splits:
    """Rows of 6 to 19 tokens, the same at every call."""

    def split(count: int, seed: int) -> Split:
        shard = listops.generate(RULES.data, count, seed, interpreted=True)
        return Split.of_rows(shard.tokens, np.concatenate([[0], np.cumsum(shard.lengths)]), shard.labels)

    return Splits(split(10, 1), split(6, 2), split(7, 3), {"variant": "generated"})


def train_small(folder: Path, *, seed: int = 0, mechanism: str = "softmax", task=TASK, **settings: Any) -> Trained:
    """The loop on the small data; `settings` are recipe fields, or arguments of `train`."""
    fields = {field.name for field in dataclasses.fields(RULES.recipe)}
    recipe = dataclasses.replace(RULES.recipe, **{name: settings.pop(name) for name in fields & settings.keys()})
    rules = dataclasses.replace(RULES, recipe=recipe, model=settings.pop("model", RULES.model))
    seed_everything(seed)
    model = settings.pop("network", None) or task.model(attentions.get(mechanism), rules)
    fabric = make_fabric("cpu", "fp32", 1)
    return train(task, model, small_splits(), rules, fabric=fabric, seed=seed, folder=folder, **settings)
