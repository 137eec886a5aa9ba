"""Text of Long Range Arena at several lengths: is a film review positive? Bytes in, one of two answers out.

`longspan` holds a tenth of the training reviews out for validation, has the sizes of the released configuration, and
trains half as long with a schedule that ends (14 epochs; the best checkpoint is reported); `lra-paper` and
`lra-released` validate on the test set, as the originals do, and therefore report the last checkpoint: choosing the
best one would be choosing on the test set. `lra-released` pads every review to the full length.
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import imdb
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification
from longspan.tasks.lra_models import SINKHORN, released_models

DATA = imdb.PRESETS["text"]
PAPER = Protocol(
    data=DATA["lra-paper", "full"],
    model=Sizes(dim=512, heads=8, layers=6, mlp=2048),
    recipe=Recipe(
        steps=20_000, batch_size=32, learning_rate=0.05, warmup=8_000, evaluate_every=1_000, selection="last"
    ),
)
RELEASED = replace(PAPER, model=Sizes(dim=256, heads=4, layers=4, mlp=1024, hide_zeros=True))
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=replace(RELEASED.model, hide_zeros=False),
    recipe=replace(
        PAPER.recipe,
        steps=10_000,
        learning_rate=3e-4,
        warmup=1_000,
        schedule="linear",
        clip=1.0,
        evaluate_every=500,
        selection="best",
    ),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(dim=64, heads=2, layers=1, mlp=128, dropout=0.0, attention_dropout=0.0),
    recipe=Recipe(
        steps=120,
        batch_size=16,
        learning_rate=2e-3,
        warmup=20,
        schedule="linear",
        weight_decay=0.01,
        evaluate_every=60,
    ),
)


class ByteText(Classification):
    """A review as its UTF-8 bytes, each one symbol, 0 for padding."""

    dataset = "imdb"
    classes = imdb.CLASSES
    presets = {"lra-released": released_models({"sinkhorn": SINKHORN})}

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.length


def protocols(task: str) -> dict[tuple[str, str], Protocol]:
    """The rules of one of these tasks, which differ in how long the reviews are."""
    rules = {
        ("longspan", "smoke"): SMOKE,
        **LONGSPAN.tiers("longspan"),
        **PAPER.tiers("lra-paper"),
        **RELEASED.tiers("lra-released"),
    }
    return {key: replace(protocol, data=imdb.PRESETS[task][key]) for key, protocol in rules.items()}
