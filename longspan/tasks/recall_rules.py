"""Rules that `recall` and `noncausal_recall` share: sizes, steps, and chance, which is to answer any value of a row."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from longspan.datasets.base import Split
from longspan.metrics.point_cloud import category_mean
from longspan.tasks.base import Protocol, Recipe

RECIPE = Recipe(
    steps=22_500,
    batch_size=256,
    learning_rate=1e-3,
    warmup=1_000,
    schedule="cosine_to_zero",
    weight_decay=0.1,
    clip=1.0,
    evaluate_every=750,
    evaluation_batch=64,
    order="by_length",
)
SMOKE = replace(
    RECIPE,
    steps=400,
    batch_size=64,
    learning_rate=4e-3,
    warmup=40,
    weight_decay=0.01,
    evaluate_every=200,
    evaluation_batch=200,
    order="shuffled",
)


def protocols(data: Mapping[tuple[str, str], Any], sizes: Callable[..., Any]) -> dict[tuple[str, str], Protocol]:
    """`longspan` in its tiers, with a network of these `sizes`."""
    full = sizes(dim=128, heads=1, layers=2, mlp=512, attention_dropout=0.0)
    small = sizes(dim=64, heads=1, layers=2, mlp=128, attention_dropout=0.0)
    whole = Protocol(data=data["longspan", "full"], model=full, recipe=RECIPE)
    return {
        ("longspan", "smoke"): Protocol(data=data["longspan", "smoke"], model=small, recipe=SMOKE),
        **whole.tiers("longspan"),
    }


def chance(split: Split) -> float:
    pairs = [np.count_nonzero(split.example(i)[len(split.example(i)) // 2 :]) for i in range(len(split))]
    return category_mean(1 / np.array(pairs), split.labels.astype(int))
