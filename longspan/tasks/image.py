"""Image: what is in a gray CIFAR-10 picture, read pixel by pixel? No second dimension (arXiv:2011.04006).

`longspan` counts black as a symbol like any other, has the sizes of the released configuration and trains for 100
epochs, not 200; `lra-released` keeps the release's rule that black pixels are padding, and has the sizes of each
model's own file; `lra-paper` has the sizes of the appendix, with the embedding as wide as the queries, which the paper
leaves open.
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import cifar10
from longspan.tasks import strong
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification, encoder_task
from longspan.tasks.lra_models import SINKHORN, released_models, sizes

DATA = cifar10.PRESETS["image"]
RELEASED = Protocol(
    data=DATA["lra-released", "full"],
    model=Sizes(
        dim=128,
        heads=8,
        layers=1,
        mlp=128,
        inner=64,
        dropout=0.3,
        attention_dropout=0.2,
        positions="learned",
        hide_zeros=True,
    ),
    recipe=Recipe(
        steps=35_000,
        batch_size=256,
        learning_rate=5e-4,
        warmup=175,
        schedule="cosine",
        weight_decay=0.0,
        evaluate_every=175,
        evaluation_batch=500,
        selection="last",
    ),
)
PAPER = replace(
    RELEASED,
    model=replace(RELEASED.model, dim=64, heads=4, layers=3, inner=None, hide_zeros=False),
    recipe=replace(RELEASED.recipe, learning_rate=0.01, selection="best"),
)
LONGSPAN = replace(
    RELEASED,
    model=replace(RELEASED.model, hide_zeros=False),
    recipe=replace(RELEASED.recipe, steps=17_500, selection="best"),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(
        dim=32, heads=2, layers=1, mlp=32, dropout=0.0, attention_dropout=0.0, pooling="mean", positions="learned"
    ),
    recipe=replace(LONGSPAN.recipe, steps=30, batch_size=16, warmup=5, learning_rate=0.01, evaluate_every=15),
)

# layers, embedding, queries, MLP, heads. The Transformer's, which are those of RELEASED, are not repeated.
MODELS = {
    "local": sizes(1, 128, 64, 128, 2, pooling="mean"),
    "longformer": sizes(4, 128, 64, 128, 4, pooling="mean"),
    "reformer": sizes(4, 64, 32, 64, 8),
    "sinkhorn": sizes(1, 32, 32, 64, 1, dropout=0.1) | SINKHORN | {"recipe.weight_decay": 0.7},
    "bigbird": sizes(1, 128, 64, 128, 1),  # its file misspells the setting of four heads, so it has the base's one
}


class Image(Classification):
    meta = encoder_task("Image")
    dataset = "cifar10"
    protocols = {
        ("longspan", "smoke"): SMOKE,
        **LONGSPAN.tiers("longspan"),
        **PAPER.tiers("lra-paper"),
        **RELEASED.tiers("lra-released"),
        **strong.tiers(strong.IMAGE, DATA),
    }
    presets = {"lra-released": released_models(MODELS, block=64), "strong": strong.IMAGE_MODELS}
    classes = cifar10.CLASSES
    pixels = True

    def longest(self, protocol: Protocol) -> int:
        return cifar10.PIXELS
