"""Retrieval of Long Range Arena, for any number of steps: does one paper cite the other? Two towers of bytes.

Both texts go through one encoder, and neither sees the other; only the head sees both. `longspan` and `lra-paper` have
a class token in front of each text and the head of the paper, two layers on [u, v, u * v, u - v]; `lra-released` does
what the released code does: the output at the first byte, three layers on [u, v], and every text padded to the full
length.
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import aan
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification
from longspan.tasks.lra_models import released_models

DATA = aan.PRESETS["retrieval"]
PAPER = Protocol(
    data=DATA["lra-paper", "full"],
    model=Sizes(dim=128, heads=4, layers=4, mlp=512, features="four"),
    recipe=Recipe(steps=5_000, batch_size=32, learning_rate=0.5, warmup=8_000, evaluate_every=500),
)
RELEASED = Protocol(
    data=DATA["lra-released", "full"],
    model=replace(PAPER.model, features="two", head_layers=3, pooling="first", hide_zeros=True),
    recipe=replace(PAPER.recipe, learning_rate=0.05, selection="last"),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=PAPER.model,
    recipe=replace(PAPER.recipe, learning_rate=5e-4, warmup=500, schedule="linear", clip=1.0),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(dim=64, heads=2, layers=1, mlp=128, dropout=0.0, attention_dropout=0.0, features="four"),
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


class BytePairs(Classification):
    """Two papers as their UTF-8 bytes, each one symbol, 0 for padding."""

    dataset = "aan"
    classes = aan.CLASSES
    presets = {"lra-released": released_models({}, cls=False)}
    texts = 2

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.length


def protocols(steps: int) -> dict[tuple[str, str], Protocol]:
    """The rules for this many steps, with the same rates and warm-up for any number of them."""
    return {
        ("longspan", "smoke"): SMOKE,
        **_for(LONGSPAN, steps).tiers("longspan"),
        **_for(PAPER, steps).tiers("lra-paper"),
        **_for(RELEASED, steps).tiers("lra-released"),
    }


def _for(protocol: Protocol, steps: int) -> Protocol:
    return replace(protocol, recipe=replace(protocol.recipe, steps=steps))
