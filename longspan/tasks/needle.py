"""Needle in a haystack: repeat the number that one sentence of a long text gives (our definition, see the dataset).

A row is right if all its digits are. Rows of the test lie on a grid of lengths, some beyond those of training, and
depths; `accuracy_1024_0.5` is the score at 1,024 bytes with the sentence in the middle.
"""

from dataclasses import replace

import numpy as np

from longspan.backbones.gpt2 import GPT2Sizes
from longspan.datasets import needle
from longspan.datasets.base import Split
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.placed_answers import PlacedAnswersTask, diagnostic

DATA = needle.PRESETS["needle"]
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=GPT2Sizes(dim=256, heads=4, layers=4, mlp=1_024, attention_dropout=0.0),
    recipe=Recipe(
        steps=20_000,
        batch_size=32,
        learning_rate=1e-3,
        warmup=1_000,
        schedule="cosine_to_zero",
        clip=1.0,
        evaluate_every=1_000,
        evaluation_batch=8,
        order="by_length",
    ),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=GPT2Sizes(dim=64, heads=2, layers=2, mlp=128, attention_dropout=0.0),
    recipe=replace(
        LONGSPAN.recipe,
        steps=200,
        learning_rate=3e-3,
        warmup=20,
        evaluate_every=100,
        evaluation_batch=50,
        order="shuffled",
    ),
)


class Needle(PlacedAnswersTask):
    meta = diagnostic("Needle in a haystack", "none")
    dataset = "needle"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        ("longspan", "lite"): replace(LONGSPAN.lite(), data=DATA["longspan", "lite"]),
        ("longspan", "full"): LONGSPAN,
    }
    whole_rows = True

    def chance(self, split: Split) -> float:
        """All digits guessed."""
        row = split.example(0)
        return 10.0 ** -np.count_nonzero(row[len(row) // 2 :])
