"""Path-X: Pathfinder at 128 pixels a side, 16,384 tokens, where no model of the paper beats chance (arXiv:2011.04006).

Trained from scratch here; `longspan probe transfer` tests a model that was trained on Pathfinder instead. `longspan`
counts black as a symbol and has the sizes of the released configuration. The paper gives no sizes for this task, so
`lra-paper` has those it gives for Pathfinder; the release has a file only for the Transformer, so under `lra-released`
the other models have its sizes. The smoke tier is that of Pathfinder with 14 pixels a side, not 12: it shows that
everything runs, and its rows are not long.
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import pathfinder
from longspan.tasks import pathfinder_rules, strong
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification, encoder_task
from longspan.tasks.lra_models import SINKHORN, released_models

DATA = pathfinder.PRESETS["pathx"]
RELEASED = Protocol(
    data=DATA["lra-released", "full"],
    model=Sizes(dim=32, heads=2, layers=1, mlp=32, inner=16, pooling="mean", positions="learned", hide_zeros=True),
    recipe=Recipe(
        steps=500_000,
        batch_size=64,
        learning_rate=1e-3,
        warmup=2_500,
        schedule="cosine",
        weight_decay=0.0,
        clip=1.0,
        evaluate_every=2_500,
        evaluation_batch=64,
        selection="last",
    ),
)
PAPER = replace(
    RELEASED,
    model=Sizes(dim=128, heads=8, layers=4, mlp=128),
    recipe=replace(RELEASED.recipe, learning_rate=0.01, selection="best"),
)
LONGSPAN = replace(
    RELEASED, model=replace(RELEASED.model, hide_zeros=False), recipe=replace(RELEASED.recipe, selection="best")
)
SMOKE = replace(pathfinder_rules.SMOKE, data=DATA["longspan", "smoke"])


class PathX(Classification):
    meta = encoder_task("Path-X")
    dataset = "pathfinder"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        **LONGSPAN.tiers("longspan"),
        **PAPER.tiers("lra-paper"),
        **RELEASED.tiers("lra-released"),
        **strong.tiers(strong.PATHX, DATA),
    }
    presets = {
        "lra-released": released_models({"sinkhorn": SINKHORN}, block=64, cls=False),
        "strong": strong.PATHX_MODELS,
    }
    classes = pathfinder.CLASSES
    pixels = True

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.size**2
