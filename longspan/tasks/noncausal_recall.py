"""Multi-query associative recall for an encoder: rows of `recall`, which every token sees whole (arXiv:2312.04927).

The value behind a query is in no row but in the context, so that nothing has to be hidden. It separates mechanisms less
than `recall`: a key may also look forward, and its place helps to find it. Two RoBERTa blocks, steps as in `recall`.
"""

from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.gpt2 import Sizes
from longspan.backbones.roberta import RoBERTa
from longspan.backbones.slots import AttentionFactory
from longspan.datasets import recall
from longspan.datasets.base import Split
from longspan.metrics.point_cloud import category_mean
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.placed_answers import Batch, PlacedAnswersTask, diagnostic

DATA = recall.PRESETS["noncausal_recall"]
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=Sizes(dim=128, heads=1, layers=2, mlp=512, attention_dropout=0.0),
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
    model=Sizes(dim=64, heads=1, layers=2, mlp=128, attention_dropout=0.0),
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


class NoncausalRecall(PlacedAnswersTask):
    meta = replace(
        diagnostic("Associative recall, noncausal", "arXiv:2312.04927"),
        backbone="roberta",
        slots={"encoder": Pattern.NONCAUSAL_SELF},
    )
    dataset = "recall"
    protocols = {("longspan", "smoke"): SMOKE, **LONGSPAN.tiers("longspan")}
    takes_network = False

    def vocabulary(self, protocol: Protocol) -> int:
        return protocol.data.vocabulary

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        vocabulary, length = self.vocabulary(protocol), self.longest(protocol)
        return RoBERTa(attention, protocol.model, vocabulary=vocabulary, length=length)

    def answers(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.tokens, batch.real, batch.places)

    def chance(self, split: Split) -> float:
        pairs = [np.count_nonzero(split.example(i)[len(split.example(i)) // 2 :]) for i in range(len(split))]
        return category_mean(1 / np.array(pairs), split.labels.astype(int))
