"""One step of the optimiser on a batch in parts; on a single GPU it is captured as a CUDA graph.

update, stage = make_update(task, model, optimizer, recipe, fabric)
with stage:
    results = update(parts)      # a StepResult for each part, in tensors that the next update may overwrite
"""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from longspan.tasks.base import Recipe, StepResult, Task
from longspan.training.cuda_graph_step import Captured, CudaGraphs, Recorder, Update, copy_of
from longspan.training.gradient import Gradient

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def make_update(
    task: Task, model: Any, optimizer: Any, recipe: Recipe, fabric: "Fabric"
) -> tuple[Update, contextlib.AbstractContextManager]:
    """The update, and the context in which it must run."""
    eager = Whole(Gradient(task, model, recipe, fabric), optimizer)
    if fabric.device.type != "cuda" or fabric.world_size > 1 or recipe.checkpoint_activations:  # reads RNG state
        return eager, contextlib.nullcontext()
    recorder = CudaGraphs()
    if recipe.order == "by_length" and recipe.accumulate > 1:
        return PartByPart(eager, recorder), recorder.stage()
    return Captured(eager, recorder), recorder.stage()


class Whole:
    """All parts of a batch and the optimiser step that follows."""

    def __init__(self, gradient: Gradient, optimizer: Any):
        self.gradient, self.optimizer = gradient, optimizer

    def __call__(self, parts: Sequence[Any]) -> list[StepResult]:
        self.optimizer.zero_grad(set_to_none=True)
        totals, alone = self.gradient.totals(parts), len(parts) == 1
        results = [self.gradient.part(one, totals, last=one is parts[-1], alone=alone) for one in parts]
        self.step([result.count for result in results], bool(results[0].terms))
        return results

    def step(self, counts: Sequence[Any], has_terms: bool) -> None:
        self.gradient.finish(counts, has_terms)
        recipe, fabric = self.gradient.recipe, self.gradient.fabric
        if recipe.clip is not None:
            model = self.gradient.model
            fabric.clip_gradients(model, self.optimizer, max_norm=recipe.clip, error_if_nonfinite=False)
        self.optimizer.step()


class PartByPart:
    """The same, each part captured separately: if every part has a width of its own, no batch shape recurs.

    Gradients are zeroed in place, since captured parts accumulate into the memory that held them at capture.
    """

    def __init__(self, update: Whole, recorder: Recorder):
        self._update = update
        self._part = Captured(
            lambda given: update.gradient.part(given[0], given[1], last=True, alone=given[2]), recorder
        )
        self._step = Captured(lambda given: update.step(given[0], given[1]), recorder)

    def __call__(self, parts: Sequence[Any]) -> list[StepResult]:
        self._update.optimizer.zero_grad(set_to_none=False)
        gradient, alone = self._update.gradient, len(parts) == 1
        device = gradient.fabric.device
        totals = {name: torch.as_tensor(count, device=device) for name, count in gradient.totals(parts).items()}
        results = [copy_of(self._part([one, totals, alone])) for one in parts]
        self._step([[result.count for result in results], bool(results[0].terms)])
        return results
