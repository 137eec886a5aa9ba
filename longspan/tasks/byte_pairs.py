"""Retrieval of Long Range Arena, for as many steps as one likes: does one paper cite the other? Two towers of bytes.

Both texts go through one encoder, and neither sees the other; only the head sees both. `longspan` and `lra-paper` have
a class token in front of each text and the head of the paper, two layers on [u, v, u * v, u - v]; `lra-released` has
what the released code does: the output at the first byte, and three layers on [u, v].
"""

from dataclasses import replace

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import aan
from longspan.tasks.base import Protocol, Recipe
from longspan.tasks.classification import Classification

DATA = aan.PRESETS["retrieval"]
PAPER = Protocol(
    data=DATA["lra-paper", "full"],
    model=Sizes(dim=128, heads=4, layers=4, mlp=512, features="four"),
    recipe=Recipe(steps=5_000, batch_size=32, learning_rate=0.5, warmup=8_000, evaluate_every=500),
)
RELEASED = Protocol(
    data=DATA["lra-released", "full"],
    model=replace(PAPER.model, features="two", head_layers=3, pooling="first"),
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
    texts = 2

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.length


def protocols(steps: int, warmup: int) -> dict[tuple[str, str], Protocol]:
    """The rules for this many steps; the warm-up is that of the configurations by whose rules one trains."""
    return {
        ("longspan", "smoke"): SMOKE,
        **_for(LONGSPAN, steps, LONGSPAN.recipe.warmup).tiers("longspan"),
        **_for(PAPER, steps, warmup).tiers("lra-paper"),
        **_for(RELEASED, steps, warmup).tiers("lra-released"),
    }


def _for(protocol: Protocol, steps: int, warmup: int) -> Protocol:
    return replace(protocol, recipe=replace(protocol.recipe, steps=steps, warmup=warmup))
