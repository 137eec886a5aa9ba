"""On a GPU: training with recorded updates matches training step by step.

python -m pytest tests/training/cuda_graph_step_gpu.py --noconftest -q
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from longspan import attentions
from longspan.datasets.base import Split
from longspan.runs import Cell, RunPlan
from longspan.runs.fabric import make_fabric
from longspan.tasks.token_feed import TokenFeed
from longspan.tasks.widths import bucket
from longspan.training.cuda_graph_step import Captured
from longspan.training.optimizer import make_optimizer, set_learning_rate
from longspan.training.order import ExampleOrder, order_of
from longspan.training.update import PartByPart, make_update
from tests.training.parted import Parted

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


@dataclass(frozen=True)
class Batch:
    """Texts padded to one of three widths."""

    tokens: torch.Tensor


class Widths(TokenFeed):
    def batch(self, rows):
        whole = super().batch(rows)
        return Batch(whole.tokens[:, : bucket(int(self.lengths[rows].max()), 7, 19)].contiguous())


def parted_losses(rule: str, recorded: bool, epochs: int = 6) -> tuple[torch.Tensor, dict, int, set]:
    """Three terms with their own counts, in parts of three widths, whose order differs in every epoch.

    Returns losses, weights, the number of recorded parts, and the shapes of parts.
    """
    changes = {"recipe.order": "by_length", "recipe.accumulate": 4, "recipe.batch_size": 16, "recipe.parts": rule}
    task, fabric = Parted(), make_fabric("cuda", "fp32", 1)
    recipe = task.protocol("longspan", "smoke").override(changes | {"recipe.clip": 1.0, "recipe.eps": 1e-3}).recipe
    torch.manual_seed(0)
    network = task.model(attentions.get("softmax"), task.protocol("longspan", "smoke")).cuda().train()
    model, optimizer = fabric.setup(network, make_optimizer(network, recipe))
    update, stage = make_update(task, model, optimizer, recipe, fabric)
    assert isinstance(update, PartByPart)
    feed = Widths(rows(62, 5, 19), "cuda")
    order, found, shapes = order_of(feed, recipe, 0, 1), [], set()
    with stage:
        for step in range(epochs * 4):
            torch.manual_seed(step)
            set_learning_rate(optimizer, 1e-2)
            parts = [feed.batch(part) for part in order.parts(step)]
            shapes |= {part.tokens.shape for part in parts}
            results = (update if recorded else update._update)(parts)
            found.append(torch.stack([result.loss for result in results]).sum())
    assert not update._part._gives_up
    assert not update._step._gives_up
    recordings = sum(one is not None for one in update._part._met.values())
    return torch.stack(found).cpu(), {n: v.cpu() for n, v in network.state_dict().items()}, recordings, shapes


@pytest.mark.parametrize("rule", ["counts", "mean", "sum_over_samples"])
def test_parts_of_three_widths_are_recorded_one_by_one_and_train_as_they_did(rule):
    plain, weights, none, shapes = parted_losses(rule, recorded=False)
    fast, fast_weights, some, _ = parted_losses(rule, recorded=True)
    assert none == 0
    assert {width for _, width in shapes} == {7, 14, 19}
    assert some == len(shapes)
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast_weights, weights, rtol=1e-2, atol=1e-3)
    assert fast[-1] < fast[0]


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
