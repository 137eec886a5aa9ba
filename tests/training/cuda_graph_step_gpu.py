"""On a GPU: training by recorded updates goes the way that training step by step goes.

python -m pytest tests/training/cuda_graph_step_gpu.py --noconftest -q
"""

import numpy as np
import pytest
import torch

from longspan.datasets.base import Split
from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.training.cuda_graph_step import Captured
from longspan.training.optimizer import make_optimizer, set_learning_rate
from longspan.training.order import ExampleOrder
from longspan.training.update import make_update

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
SIZES = {"model.dim": 64, "model.heads": 4, "model.layers": 2, "model.mlp": 128, "recipe.batch_size": 8}
MECHANISMS = ["softmax", "linear", "local", "performer", "linformer", "abc", "cosformer", "nystromformer", "bigbird"]
MECHANISMS += ["longformer", "reformer", "sinkhorn", "s4d", "fnet", "synthesizer", "sparse_transformer", "lara"]


def rows(count: int, shortest: int, longest: int) -> Split:
    draw = np.random.default_rng(0)
    lengths = draw.integers(shortest, longest + 1, count)
    lengths[0] = longest
    tokens = draw.integers(1, 15, lengths.sum()).astype(np.uint8)
    return Split.of_rows(
        tokens, np.concatenate([[0], np.cumsum(lengths)]), draw.integers(0, 10, count).astype(np.uint8)
    )


def losses(mechanism: str, split: Split, recorded: bool, steps: int = 24) -> tuple[list[float], int]:
    plan = RunPlan.of(Cell("listops", mechanism, None, "longspan", "full", 0, SIZES))
    fabric = make_fabric("cuda", "fp32", 1)
    model = plan.model().cuda().train()
    model, optimizer = fabric.setup(model, make_optimizer(model, plan.protocol.recipe))
    update, stage = make_update(plan.task, model, optimizer, plan.protocol.recipe, fabric)
    assert isinstance(update, Captured)
    feed = plan.task.feed(split, plan.protocol, "cuda")
    order = ExampleOrder(len(feed), plan.protocol.recipe.batch_size, 0)
    found = []
    with stage:
        for step in range(steps):
            torch.manual_seed(step)
            set_learning_rate(optimizer, 1e-3 * (step + 1) / steps)
            do = update if recorded else update._update
            [result] = do([feed.batch(order.rows(step))])
            found.append(result.sums["loss"].clone())
    recordings = sum(recording is not None for recording in update._met.values())
    assert not update._gives_up
    return [float(loss) for loss in found], recordings


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("shortest", [500, 200], ids=["full rows", "ragged rows"])
def test_recorded_and_plain_training_give_the_same_losses(mechanism, shortest):
    split = rows(64, shortest, 500)
    plain, none = losses(mechanism, split, recorded=False)
    fast, some = losses(mechanism, split, recorded=True)
    assert none == 0
    assert some >= 1
    np.testing.assert_allclose(fast, plain, rtol=2e-3)
    assert fast[-1] != fast[0]
