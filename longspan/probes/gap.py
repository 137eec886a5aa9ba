"""Generalisation gap: how much better is the model on what it was trained on? (table 3 of LRA)

Accuracy on the training set with the selected weights and in evaluation mode, that is without dropout, beside the
test accuracy of the same weights on the card of the run.
"""

import torch

from longspan.core.errors import UsageError
from longspan.probes.base import Answer, TrainedModel, choose

SAMPLES = None
METHOD = "Accuracy of the selected weights on the training set, without dropout, minus their test accuracy."


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    score = trained.run["score"]
    if score is None or score["name"] != "accuracy":
        raise UsageError(
            f"The gap is one of accuracies, and this run on {trained.task.name} has none; "
            "name the card of a finished run that is scored by accuracy."
        )
    split = trained.splits.train
    rows = choose(len(split), samples, seed)
    with torch.no_grad():
        outcome = trained.task.evaluate(
            trained.model, trained.feed(split), rows, trained.protocol.recipe.evaluation_batch
        )
    metrics = outcome.metrics | trained.task.summary(outcome.predictions)  # a mean over kinds, in some tasks
    train = metrics["accuracy"]
    return Answer(
        method=METHOD,
        results={
            "train": {"accuracy": train, "count": len(rows)},
            "test": {"accuracy": score["value"], "count": score["count"]},
            "gap": train - score["value"],
        },
        settings={"split": "train", "samples": len(rows), "seed": seed},
    )
