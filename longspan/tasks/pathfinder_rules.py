"""The rules of Pathfinder, whichever token its answer is read from: are two discs ends of one dashed path?

`longspan` counts black as a symbol like any other (ids are intensities plus one, 0 is left for padding), has the sizes
of the released configuration, and trains on pictures that cannot be memorised: new ones in every epoch, each flipped
and rotated at random, since small encoders memorise 160,000 fixed ones before they find the rule (version 1 had these;
validation and test are the same). `lra-released` keeps the release's rule that black pixels are padding, and has the
sizes of each model's own file (for Performer as corrected by an author, issue 37 of the release); `lra-paper` has the
sizes of the appendix, with the embedding as wide as the queries, which the paper leaves open.

The smoke tier has pictures of 12 pixels a side with two short curves and nothing else, and trains on fixed ones. Its
recipe was chosen on validation pictures, so that softmax rises above chance within seconds on a CPU.
"""

from dataclasses import replace

import torch

from longspan.backbones.encoder_classifier import Sizes
from longspan.datasets import pathfinder
from longspan.datasets.base import Split
from longspan.tasks.base import Feed, Protocol, Recipe
from longspan.tasks.classification import Classification
from longspan.tasks.fresh_feed import FreshFeed
from longspan.tasks.lit_feed import LitFeed
from longspan.tasks.lra_models import SINKHORN, sizes

DATA = pathfinder.PRESETS["pathfinder"]
RELEASED = Protocol(
    data=DATA["lra-released", "full"],
    model=Sizes(dim=32, heads=4, layers=4, mlp=32, inner=16, dropout=0.2, pooling="mean", hide_zeros=True),
    recipe=Recipe(
        steps=62_400,
        batch_size=512,
        learning_rate=1e-3,
        warmup=312,
        schedule="cosine",
        weight_decay=0.0,
        evaluate_every=312,
        evaluation_batch=512,
        selection="last",
    ),
)
PAPER = replace(
    RELEASED,
    model=Sizes(dim=128, heads=8, layers=4, mlp=128, dropout=0.2),
    recipe=replace(RELEASED.recipe, learning_rate=0.01, selection="best"),
)
LONGSPAN = Protocol(
    data=DATA["longspan", "full"],
    model=replace(RELEASED.model, hide_zeros=False),
    recipe=replace(RELEASED.recipe, selection="best"),
)
SMOKE = Protocol(
    data=DATA["longspan", "smoke"],
    model=Sizes(dim=32, heads=2, layers=1, mlp=32, dropout=0.0, attention_dropout=0.0, pooling="mean"),
    recipe=replace(
        LONGSPAN.recipe,
        steps=400,
        batch_size=32,
        learning_rate=5e-3,
        warmup=20,
        evaluate_every=100,
        evaluation_batch=100,
    ),
)

# layers, embedding, queries, MLP, heads. The Transformer's are those of RELEASED.
MODELS = {
    "local": sizes(2, 64, 32, 64, 4, dropout=0.1),
    "sparse_transformer": sizes(1, 32, 16, 32, 8),
    "longformer": sizes(2, 32, 16, 32, 2, dropout=0.1),
    "linformer": sizes(1, 32, 16, 32, 2),
    "reformer": sizes(2, 64, 32, 64, 8),
    "sinkhorn": sizes(2, 32, 16, 64, 4) | SINKHORN,
    "synthesizer": sizes(2, 64, 32, 64, 4),
    "bigbird": sizes(4, 64, 32, 64, 2),
    "linear": sizes(1, 128, 64, 128, 2),
    "performer": sizes(1, 128, 64, 128, 8),  # an author's correction; the file has 4 layers, 32, 16, 32
}


class PathfinderTask(Classification):
    dataset = "pathfinder"
    classes = pathfinder.CLASSES
    pixels = True

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> Feed:
        if isinstance(split, pathfinder.Drawn):
            fresh = FreshFeed(split, device, self.shift(protocol))
            return LitFeed(fresh, fresh.lit) if protocol.model.zero_rule == "drop" else fresh
        return super().feed(split, protocol, device)

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.size**2


def with_class_token(protocol: Protocol) -> Protocol:
    """The same network with its answer read from a class token, and not from the mean over all pixels."""
    return replace(protocol, model=replace(protocol.model, pooling="cls"))
