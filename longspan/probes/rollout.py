"""Attention rollout: which pixels does the answer come from? (arXiv:2005.00928, as in arXiv:2011.04006, figure 5)

    A_l <- (mean over heads of A_l + I) / 2, rows scaled to sum to 1      R = A_L ... A_2 A_1

Row i of R says how the last layer's token i is mixed from the input. The map of an image is the row of the class token
without its own column; a model that pools by mean has no such token, and gets the mean over all rows instead.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from einops import rearrange
from einops import reduce as fold
from jaxtyping import Float
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.probes.base import Answer, TrainedModel
from longspan.probes.matrices import listening, matrix

SAMPLES = 8
TASKS = ("pathfinder", "pathfinder_cls", "image")
LONGEST = 4096  # tokens; the matrices of longer images do not fit into memory side by side

METHOD = "Attention rollout: heads averaged, half identity in every layer; the map is {query}."
QUERIES = {
    "cls": "the row of the class token",
    "first": "the row of the first token, where the model reads its answer",
    "mean": "the mean over all rows, since the model pools by mean and has no class token",
}


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    trained.must_be_of(TASKS, "Rollout is drawn as a map over a square image")
    if (length := trained.task.longest(trained.protocol)) > LONGEST:
        raise UsageError(
            f"Rollout multiplies attention matrices of at most {LONGEST} tokens, and this run has {length}; "
            "name the card of a run on smaller images."
        )
    pooling = getattr(trained.protocol.model, "pooling", "mean")
    split = trained.splits.valid
    rows = _both_labels(np.asarray(split.labels), samples or SAMPLES, seed)
    feed = trained.feed(split)
    examples = []
    for row in rows:
        with torch.no_grad(), listening(trained.model) as heard:
            outcome = trained.task.evaluate(trained.model, feed, np.array([row]), 1)
            weights = [matrix(one) for one in heard]
        if any(one is None for one in weights):
            raise UsageError(
                f"Rollout multiplies attention matrices, and {trained.mechanism} has none; "
                "name the card of a run with a mechanism that has, such as softmax."
            )
        mixed = rollout([one[0] for one in weights if one is not None])
        image = np.asarray(split.example(int(row)))
        side = int(len(image) ** 0.5)
        pixels = pixel_map(mixed, pooling)
        shares = rearrange(pixels, "(y x) -> y x", y=side).double().cpu()
        lit = torch.from_numpy(image > 0)
        examples.append(
            {
                "row": int(row),
                "label": int(outcome.predictions["label"][0]),
                "prediction": int(outcome.predictions["prediction"][0]),
                "image": rearrange(image, "(y x) -> y x", y=side).tolist(),
                "map": [[float(f"{value:.4g}") for value in line] for line in shares.tolist()],
                "lit_area": float(lit.double().mean()),
                "lit_share": float(shares.flatten()[lit].sum() / shares.sum()),
            }
        )
    return Answer(
        method=METHOD.format(query=QUERIES[pooling]),
        results={"examples": examples, "query": pooling},
        settings={"split": "valid", "samples": len(rows), "seed": seed},
    )


def rollout(weights: Sequence[Float[Tensor, "h n n"]]) -> Float[Tensor, "n n"]:
    """How the tokens after the last layer are mixed from those before the first; every row sums to 1."""
    layers = [_with_residual(one.float()) for one in weights]
    return reduce(lambda below, above: above @ below, layers)


def _with_residual(weights: Float[Tensor, "h n n"]) -> Float[Tensor, "n n"]:
    mixed = fold(weights, "h n m -> n m", "mean") / 2 + torch.eye(weights.shape[-1], device=weights.device) / 2
    return mixed / mixed.sum(dim=-1, keepdim=True)


def pixel_map(mixed: Float[Tensor, "n n"], pooling: str) -> Float[Tensor, " pixels"]:
    """How much each pixel contributes to the answer; the class token is not a pixel."""
    if pooling == "mean":
        return fold(mixed, "n m -> m", "mean")
    return mixed[0, 1:] if pooling == "cls" else mixed[0]


def _both_labels(labels: np.ndarray, samples: int, seed: int) -> list[int]:
    """Random rows, one of every label in turn, `samples` in all."""
    order = np.random.default_rng(seed).permutation(len(labels))
    piles = [[int(row) for row in order if labels[row] == label] for label in np.unique(labels)]
    turns = [pile[turn] for turn in range(max(map(len, piles))) for pile in piles if turn < len(pile)]
    return turns[:samples]
