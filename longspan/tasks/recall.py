"""Multi-query associative recall: which value stood behind this key? (arXiv:2312.04927, settings of arXiv:2402.18668)

`longspan` has the rows of the Based paper in a network of this package: two GPT-2 blocks with MLP, positions and one
head, and no convolution before the slot, so that the mechanism alone has to find the key and the token behind it. The
steps are those of 32 epochs. Chance is to answer with any value of the row.
"""

from dataclasses import replace

import numpy as np

from longspan.backbones.gpt2 import GPT2Sizes
from longspan.datasets import recall
from longspan.datasets.base import Split
from longspan.metrics.point_cloud import category_mean
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.placed_answers import PlacedAnswersTask, diagnostic

DATA = recall.PRESETS["recall"]
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=GPT2Sizes(dim=128, heads=1, layers=2, mlp=512, attention_dropout=0.0),
    recipe=Recipe(
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
    ),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=GPT2Sizes(dim=64, heads=1, layers=2, mlp=128, attention_dropout=0.0),
    recipe=replace(
        LONGSPAN.recipe,
        steps=400,
        batch_size=64,
        learning_rate=4e-3,
        warmup=40,
        weight_decay=0.01,
        evaluate_every=200,
        evaluation_batch=200,
        order="shuffled",
    ),
)


class Recall(PlacedAnswersTask):
    meta = diagnostic("Multi-query associative recall", "arXiv:2312.04927")
    dataset = "recall"
    protocols = {("longspan", "smoke"): SMOKE, **LONGSPAN.tiers("longspan")}

    def vocabulary(self, protocol: Protocol) -> int:
        return protocol.data.vocabulary

    def chance(self, split: Split) -> float:
        pairs = [np.count_nonzero(split.example(i)[len(split.example(i)) // 2 :]) for i in range(len(split))]
        return category_mean(1 / np.array(pairs), split.labels.astype(int))
