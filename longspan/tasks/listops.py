"""ListOps: evaluate a nested bracket expression, answer one digit (Long Range Arena, arXiv:2011.04006).

`lra-paper` has the sizes of the paper's appendix, `lra-released` those of the released configuration (last checkpoint
reported, rows padded to 2,000 tokens as the release does); `longspan` has the paper's sizes and steps with a recipe
that trains the deep encoder.
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import listops
from longspan.tasks import strong
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification, encoder_task
from longspan.tasks.lra_models import SINKHORN, released_models

DATA = listops.PRESETS["listops"]
PAPER = Protocol(
    data=DATA["lra-paper", "full"],
    model=Sizes(dim=512, heads=8, layers=6, mlp=2048),
    recipe=Recipe(steps=5_000, batch_size=32, learning_rate=0.05, warmup=1_000, evaluate_every=250),
)
RELEASED = replace(
    PAPER,
    model=Sizes(dim=512, heads=8, layers=4, mlp=1024, hide_zeros=True),
    recipe=replace(PAPER.recipe, selection="last", evaluate_every=50),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=replace(PAPER.model, dropout=0.0, attention_dropout=0.0),
    recipe=replace(PAPER.recipe, learning_rate=2e-4, warmup=500, schedule="linear", clip=1.0, average=0.998),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(dim=64, heads=2, layers=2, mlp=128, dropout=0.0, attention_dropout=0.0),
    recipe=Recipe(
        steps=300,
        batch_size=16,
        learning_rate=4e-3,
        warmup=30,
        schedule="linear",
        evaluate_every=150,
        weight_decay=0.01,
    ),
)


class ListOps(Classification):
    meta = encoder_task("ListOps")
    dataset = "listops"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        **LONGSPAN.tiers("longspan"),
        **PAPER.tiers("lra-paper"),
        **RELEASED.tiers("lra-released"),
        **strong.tiers(strong.LISTOPS, DATA),
    }
    presets = {"lra-released": released_models({"sinkhorn": SINKHORN}, features=2), "strong": strong.LISTOPS_MODELS}

    symbols = listops.VOCAB
    classes = listops.CLASSES

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.shorter_than

    def shift(self, protocol: Protocol) -> int:
        return 0  # ids are stored that way: 0 is padding already
