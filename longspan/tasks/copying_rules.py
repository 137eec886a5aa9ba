"""The rules of `copying` and `selective_copying`: two GPT-2 blocks, and rows of one length in training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longspan.backbones.gpt2 import GPT2Sizes
from longspan.datasets.base import Split
from longspan.datasets.copying import SYMBOLS
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.placed_answers import PlacedAnswersTask

RECIPE = Recipe(
    steps=10_000,
    batch_size=32,
    learning_rate=1e-3,
    warmup=500,
    schedule="cosine_to_zero",
    clip=1.0,
    evaluate_every=500,
    evaluation_batch=32,
)
SIZES = GPT2Sizes(dim=128, heads=4, layers=2, mlp=512, attention_dropout=0.0)
SMALL = GPT2Sizes(dim=64, heads=2, layers=2, mlp=128, attention_dropout=0.0)


def protocols(data: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Protocol]:
    """All tiers, given the data of each; lite has rows of its own, and a tenth of the steps of full."""
    full = Protocol(data["longspan", "full"], SIZES, RECIPE)
    short = replace(RECIPE, steps=300, learning_rate=3e-3, warmup=30, evaluate_every=150)
    return {
        ("longspan", "smoke"): Protocol(data["longspan", "smoke"], SMALL, short),
        ("longspan", "lite"): replace(full.lite(), data=data["longspan", "lite"]),
        ("longspan", "full"): full,
    }


class CopyingTask(PlacedAnswersTask):
    dataset = "copying"

    def chance(self, split: Split) -> float:
        return 1 / SYMBOLS
