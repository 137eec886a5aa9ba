"""In mixed precision, as on a GPU, Fabric takes a batch apart and rebuilds it before the network sees it."""

import math

import numpy as np
import pytest

from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.training.optimizer import make_optimizer


@pytest.mark.parametrize("task", ["listops", "retrieval", "image", "lm", "mlm", "summarization", "forecasting_etth1"])
def test_every_kind_of_batch_goes_through_it(task):
    plan = RunPlan.of(Cell(task, "softmax", tier="smoke"))
    fabric = make_fabric("cpu", "bf16", 1)
    model = plan.model()
    model, _ = fabric.setup(model, make_optimizer(model, plan.protocol.recipe))
    feed = plan.task.feed(plan.task.splits(plan.protocol).train, plan.protocol, fabric.device)
    cut = [feed.batch, *([feed.filled] if hasattr(feed, "filled") else [])]  # a GPU has its own way to build batches
    for batch in cut:
        result = plan.task.loss(model, batch(np.arange(4)), smoothing=0.0)
        fabric.backward(result.loss)
        assert math.isfinite(float(result.loss.detach()))
