"""Scores on a whole split, by one process or by several that share its rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from longspan.tasks.base import Evaluation, Feed, Task
from longspan.training.sharding import gathered

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def evaluate(
    task: Task, model: nn.Module, feed: Feed, batch_size: int, fabric: "Fabric", *, validating: bool = False
) -> Evaluation:
    """Scores on all rows of a feed, shared between processes if there is one for each, with dropout off.

    `validating` runs `Task.validate` as during training, which may compute less.
    """
    model.eval()
    rows = np.arange(len(feed))
    shared = 1 < fabric.world_size <= len(rows)
    mine = rows[fabric.global_rank :: fabric.world_size] if shared else rows
    ask = task.validate if validating else task.evaluate
    with (
        torch.no_grad(),
        gathered(model),
        torch.compiler.set_stance("force_eager"),
    ):  # recompiling would take longer
        result = ask(model, feed, mine, batch_size)
    model.train()
    return summarised(task, _gather(task, result, fabric) if shared else result)


def _gather(task: Task, mine: Evaluation, fabric: "Fabric") -> Evaluation:
    """Join the shares of all processes: means weighted by their counts, predictions in the order of rows."""
    shares: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(shares, mine)
    return join(task, shares)


def join(task: Task, shares: Sequence[Evaluation]) -> Evaluation:
    """What one process would have computed on the rows of all shares."""
    metrics, counts = {}, {n: sum(share.counts[n] for share in shares) for n in shares[0].counts}
    count = sum(share.count for share in shares)
    for name in shares[0].metrics:
        total = sum(share.metrics[name] * share.counts.get(name, share.count) for share in shares)
        metrics[name] = total / counts.get(name, count)
    names = dict.fromkeys(name for share in shares for name in share.predictions)  # a share without rows lacks some
    predictions = {n: np.concatenate([s.predictions[n] for s in shares if n in s.predictions]) for n in names}
    if predictions:
        order = np.argsort(predictions["row"], kind="stable")
        predictions = {n: values[order] for n, values in predictions.items()}
    samples = next((share.samples for share in shares if share.samples), {})
    return Evaluation(metrics | task.derived(metrics), count, predictions, counts, samples)


def summarised(task: Task, result: Evaluation) -> Evaluation:
    """Add the scores that are computed from all predictions, if there are any."""
    if not result.predictions:
        return result
    return replace(result, metrics=result.metrics | task.summary(result.predictions))
