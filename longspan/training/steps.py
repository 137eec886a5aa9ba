"""The steps of this process: the rows it reads, the random numbers drawn for them, and what streams carry over.

steps = Steps(task, model, feed, recipe, fabric, seed)
results = steps.run(step, update)     # a StepResult for each part of the batch
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from longspan.core.seeding import derive, seed_torch
from longspan.kernels.context_parallel import shared
from longspan.tasks.base import Feed, Recipe, StepResult, Task
from longspan.tasks.row_draws import dealt
from longspan.training.cuda_graph_step import Update
from longspan.training.order import order_of
from longspan.training.streams import Streams

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Steps:
    """Several processes share the rows of a batch, or with `parallel="context"` the tokens of every row."""

    def __init__(self, task: Task, model: nn.Module, feed: Feed, recipe: Recipe, fabric: "Fabric", seed: int):
        self._task, self._feed, self._seed = task, feed, seed
        self._device, self._rank = str(fabric.device), fabric.global_rank
        place, alone = (fabric.global_rank, fabric.world_size), (0, 1)
        self._row_place, self._token_place = (alone, place) if recipe.parallel == "context" else (place, alone)
        self._order = order_of(feed, recipe, seed, self._row_place[1])
        self._streams = Streams(task, model, feed, fabric) if recipe.order == "streams" else None

    def run(self, step: int, update: Update) -> list[StepResult]:
        rows = self._rows(step)
        with dealt(*self._row_place, derive(self._seed, "batch", step)):
            seed_torch(derive(self._seed, "batch", step), self._device)
            parts = [self._feed.batch(own) for own in rows]
            if self._token_place[1] > 1:
                parts = [self._task.tokens_of(part, *self._token_place) for part in parts]
        with dealt(*self._row_place, derive(self._seed, "step", step, 0)), shared(*self._token_place):
            seed_torch(derive(self._seed, "step", step, self._rank), self._device)
            results = update(parts if self._streams is None else self._streams.before(parts, rows))
        if self._streams is not None:
            self._streams.after(rows, results)
        return results

    def carry(self) -> list[Any]:
        """What streams carry to the next step, for a checkpoint; every process must call this."""
        return [] if self._streams is None else self._streams.state()

    def resume(self, step: int, carry: list[Any]) -> None:
        """Continue before this step, with what a checkpoint says streams carry into it."""
        if self._streams is not None and carry:
            self._streams.load(carry, self._rows(step - 1))

    def _rows(self, step: int) -> list[np.ndarray]:
        """The rows of this process, part by part."""
        rank, processes = self._row_place
        return [rows[rank::processes] for rows in self._order.parts(step)]
