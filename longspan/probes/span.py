"""Required attention span: how far away, on average, is what a token attends to? (arXiv:2011.04006, section 2.3)

    span(l, h) = 1/n sum_i sum_j A_ij |i - j|

over the n real tokens of an example, the class token left out of both sums, then the mean over layers, heads and
examples of the validation set. Distances are counted along the sequence, in images too; for a pair of texts the first
is used. Without a matrix A, |d y_i / d x_j| takes its place, with rows scaled to sum to 1, at some random queries.
"""

import statistics

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.core.seeding import derive
from longspan.probes.base import Answer, TrainedModel, choose
from longspan.probes.matrices import Heard, attribution, listening, matrix

SAMPLES = 1000
BACKBONE = "encoder_classifier"  # every layer of which mixes the tokens of one whole text
QUERIES = 32  # rows of the derivative computed for each example and layer

BY_WEIGHTS = "Mean of |i - j| under the attention weights, over real tokens, layers, heads and validation examples."
BY_GRADIENTS = (
    "Mean of |i - j| under |d y_i / d x_j| of each layer, rows scaled to sum to 1, at {queries} random queries an "
    "example, since the mechanism has no attention matrix; heads cannot be told apart this way."
)


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    if (found := trained.task.meta.backbone) != BACKBONE:
        raise UsageError(
            f"The span is that of an encoder of whole texts or images ({BACKBONE}), but the card is of "
            f"{trained.task.name}, whose network is {found}; name the card of a run on a task of Long Range Arena."
        )
    rows = choose(len(trained.splits.valid), samples, seed)
    feed = trained.feed(trained.splits.valid)
    by_example, lengths = [], []
    weighted = True
    for row in rows:
        with torch.no_grad(), listening(trained.model) as heard:
            trained.task.evaluate(trained.model, feed, np.array([row]), 1)
        first = [one.row(0) for one in heard]
        counted = _counted(first[0], trained.leading)
        weighted = matrix(first[0]) is not None
        spans = [_by_weights(one, counted) if weighted else _by_gradients(one, counted, seed) for one in first]
        by_example.append(torch.stack(spans).double().cpu())
        lengths.append(int(counted.sum()))
    return Answer(
        method=BY_WEIGHTS if weighted else BY_GRADIENTS.format(queries=QUERIES),
        results=_summary(torch.stack(by_example), lengths, "weights" if weighted else "gradients"),
        settings={"split": "valid", "samples": len(rows), "seed": seed, "queries": None if weighted else QUERIES},
    )


def span(
    weights: Float[Tensor, "h q n"], queries: Int[Tensor, " q"], counted: Bool[Tensor, " n"]
) -> Float[Tensor, " h"]:
    """Mean distance from these queries to what they attend to; tokens that are not counted add nothing.

    Uniform attention over n tokens has the span (n^2 - 1) / 3n.
    """
    place = torch.arange(weights.shape[-1], device=weights.device)
    distance = (queries[:, None] - place).abs() * counted
    return (weights * distance).sum(dim=(-2, -1)) / len(queries)


def _counted(heard: Heard, leading: int) -> Bool[Tensor, " n"]:
    """The real tokens of the example itself."""
    counted = heard.real[0].clone()
    counted[:leading] = False
    return counted


def _by_weights(heard: Heard, counted: Bool[Tensor, " n"]) -> Float[Tensor, " h"]:
    weights = matrix(heard)
    assert weights is not None
    queries = counted.nonzero()[:, 0]
    return span(weights[0][:, queries].float(), queries, counted)


def _by_gradients(heard: Heard, counted: Bool[Tensor, " n"], seed: int) -> Float[Tensor, " 1"]:
    generator = torch.Generator().manual_seed(derive(seed, "queries", heard.x.shape[1]))
    places = counted.nonzero()[:, 0]
    queries = places[torch.randperm(len(places), generator=generator)[:QUERIES].to(places.device)]
    return span(attribution(heard, queries, seed=seed)[None].float(), queries, counted)


def _summary(spans: Float[Tensor, "examples layers h"], lengths: list[int], source: str) -> dict:
    by_example = spans.mean(dim=(1, 2)).tolist()
    mean = statistics.fmean(by_example)
    return {
        "mean": mean,
        "std": statistics.stdev(by_example) if len(by_example) > 1 else None,
        "samples": len(by_example),
        "length": statistics.fmean(lengths),
        "relative": mean / statistics.fmean(lengths),
        "uniform": statistics.fmean((n * n - 1) / (3 * n) for n in lengths),
        "by_layer": [[round(value, 4) for value in layer] for layer in spans.mean(dim=0).tolist()],
        "source": source,
    }
