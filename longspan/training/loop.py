"""The one training loop: from a model and a feed to the evaluated model, whatever happens in between.

Every random number of step t comes from a seed derived from (seed, t), and the order of examples from (seed, epoch). A
killed run therefore resumes from its last checkpoint with exactly the numbers of an uninterrupted one (on a CPU; on a
GPU up to the order of summation).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from longspan.backbones.batch_norm import unsynchronised
from longspan.core.atomic import temporary_beside
from longspan.core.errors import RunFailed, UsageError
from longspan.core.meter import Stopwatch, peak_memory_bytes
from longspan.core.seeding import derive, seed_torch
from longspan.core.signals import deferred
from longspan.datasets.base import Splits
from longspan.kernels.context_parallel import shared
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task
from longspan.tasks.row_draws import dealt
from longspan.training.activation_checkpointing import checkpoint_layers
from longspan.training.belongs import Belongs
from longspan.training.ema import RunningAverage
from longspan.training.evaluation import evaluate
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from longspan.training.order import order_of
from longspan.training.parallel import check_parallel
from longspan.training.pretraining import PRETRAINING, pretrain
from longspan.training.progress import Progress
from longspan.training.resume import Resumable
from longspan.training.selection import Selection, Weights
from longspan.training.sharding import in_one_piece, set_up, shard
from longspan.training.streams import Streams
from longspan.training.update import make_update

if TYPE_CHECKING:
    from lightning.fabric import Fabric

NOTHING = Belongs()
SAVE_EVERY_SECONDS = 5.0  # or less often, to leave 95 % of the time for training


@dataclass(frozen=True)
class Trained:
    """The outcome: the selected model's scores and how it came about.

    `also` are the test scores of the weights selected up to the recipe's `also_at`, with the weights themselves.
    """

    valid: Evaluation
    test: Evaluation
    selected_step: int
    progress: Progress
    weights: Weights
    also: Evaluation | None = None
    also_weights: Weights = field(default_factory=dict)


Watcher = Callable[[Progress, int], None]


def train(
    task: Task,
    model: nn.Module,
    splits: Splits,
    protocol: Protocol,
    *,
    fabric: "Fabric",
    seed: int,
    folder: Path,
    belongs: Belongs = NOTHING,
    watch: Watcher | None = None,
    save_every_seconds: float | None = None,
) -> Trained:
    """Train to the last step of the recipe, resuming from a checkpoint in `folder`, and score the selected weights.

    A checkpoint is resumed if it `belongs` to this very run and is sound in every part; others are set aside. A recipe
    with `pretraining_steps` begins with a pretraining stage, trained by this same function in a folder of its own.
    `save_every_seconds` defaults to SAVE_EVERY_SECONDS; below 0, every step is saved. Ctrl-C, SIGTERM and SIGUSR1 stop
    training after the current step, once it is saved. Several processes save, and react to a signal, only at
    evaluations, where they synchronise anyway.
    """
    save_every_seconds = SAVE_EVERY_SECONDS if save_every_seconds is None else save_every_seconds
    recipe = protocol.recipe
    folder.mkdir(parents=True, exist_ok=True)
    if fabric.world_size > 1 and (alone := unsynchronised(model)):
        raise UsageError(
            f"{alone[0]} is a batch norm of torch, whose statistics are those of one process alone; use that of "
            "longspan.backbones.batch_norm, or one device."
        )
    model = model.to(fabric.device)
    if recipe.checkpoint_activations:
        checkpoint_layers(model)
    check_parallel(task, model, recipe, fabric.world_size)
    before, sharded = 0.0, recipe.parallel == "fsdp" and fabric.world_size > 1
    if recipe.pretraining_steps:
        stage = {"fabric": fabric, "seed": derive(seed, "pretraining"), "folder": folder / PRETRAINING}
        before = pretrain(train, task, model, splits, protocol, **stage, belongs=belongs)
    if sharded:
        shard(model, fabric.device)
    bare, optimizer = model, make_optimizer(model, recipe)
    average = RunningAverage(bare, recipe.average)
    selection = Selection(task.meta, recipe)
    resumable = Resumable(folder, belongs, bare, optimizer, average, recipe, selection)
    progress = resumable.resume(fabric)
    if not progress.step:
        progress.total_seconds += before
    model, optimizer = set_up(model, optimizer, fabric)
    train_feed, valid_feed, test_feed = (
        task.feed(split, protocol, fabric.device) for split in (splits.train, splits.valid, splits.test)
    )
    device, place = str(fabric.device), (fabric.global_rank, fabric.world_size)
    in_context = recipe.parallel == "context" and fabric.world_size > 1
    rank, sharers = (0, 1) if in_context else place  # of the rows of a batch
    order = order_of(train_feed, recipe, seed, sharers)

    def rows_of(step: int) -> list[np.ndarray]:
        """This process's rows of a step, part by part."""
        return [rows[rank::sharers] for rows in order.parts(step)]

    streams = Streams(task, bare, train_feed, fabric) if recipe.order == "streams" else None
    if streams is not None and resumable.carry:
        streams.load(resumable.carry, rows_of(progress.step - 1))
    whole, stretch, since_save = Stopwatch(device), Stopwatch(device), Stopwatch("cpu")
    spent, sums, pause = progress.total_seconds, TrainingSums(progress, fabric), save_every_seconds

    def settle() -> None:
        """Bring device-side sums, clocks and peak memory into `progress`."""
        progress.train_seconds += stretch.elapsed()
        progress.total_seconds = spent + whole.elapsed()
        progress.peak_bytes = max(progress.peak_bytes, peak_memory_bytes(device))
        progress.train_sums, progress.train_count = sums.totals()

    def save() -> None:
        nonlocal pause
        since_save.restart()
        state = resumable.state(progress, [] if streams is None else streams.state())
        if fabric.is_global_zero:
            resumable.save(state)
        if save_every_seconds > 0:
            pause = max(save_every_seconds, 20 * since_save.elapsed())
        since_save.restart()

    update, stage = make_update(task, model, optimizer, recipe, fabric)
    model.train()
    if watch is not None:
        watch(progress, recipe.steps)  # a resumed run shows its progress at once
    with stage, deferred() as stopping:
        while not selection.is_over(progress):
            step = progress.step
            set_learning_rate(optimizer, learning_rate(recipe, step))
            rows = rows_of(step)
            with dealt(rank, sharers, derive(seed, "batch", step)):
                seed_torch(derive(seed, "batch", step), device)
                parts = [train_feed.batch(own) for own in rows]
                parts = [task.tokens_of(part, *place) for part in parts] if in_context else parts
            with dealt(rank, sharers, derive(seed, "step", step, 0)), shared(*(place if in_context else (0, 1))):
                seed_torch(derive(seed, "step", step, fabric.global_rank), device)
                results = update(parts if streams is None else streams.before(parts, rows))
            if streams is not None:
                streams.after(rows, results)
            for result in results:
                sums.add(result)
            progress.step = step + 1
            average.update(progress.step)
            due = recipe.evaluates_at(progress.step)
            if due:
                settle()
                with average.in_place():
                    _evaluate(task, model, valid_feed, recipe, progress, fabric)
                    selection.update(progress, bare)
                sums.clear()
            stop, late = stopping.asked, since_save.elapsed() > pause
            if fabric.world_size > 1:
                stop, late = fabric.broadcast((stop, late)) if due else (False, False)
            if stop or late or selection.is_over(progress):
                if not due:
                    settle()
                save()
                due = True
            if due:
                stretch.restart()
            if stop:
                stopping.now()
            if watch is not None:
                watch(progress, recipe.steps)
    assert progress.best_step is not None
    reported, also = selection.reported(bare), None
    if selection.also and progress.also_step != progress.best_step:
        bare.load_state_dict(selection.also)
        also = evaluate(task, model, test_feed, recipe.evaluation_batch, fabric)
    bare.load_state_dict(reported)
    test = evaluate(task, model, test_feed, recipe.evaluation_batch, fabric)
    valid = _point(progress)
    if recipe.selection == "mean_of_last":
        valid = evaluate(task, model, valid_feed, recipe.evaluation_batch, fabric, validating=True)
    if selection.also and also is None:
        also = test
    weights, also_weights = in_one_piece(bare.state_dict()), in_one_piece(selection.also)
    return Trained(valid, test, progress.best_step, progress, weights, also, also_weights)


class TrainingSums:
    """What a step reports, summed on the device since the last evaluation.

    Numbers are added one by one whether or not a run was interrupted, so that a resumed run is bitwise identical.
    """

    def __init__(self, progress: Progress, fabric: "Fabric"):
        self._fabric = fabric
        self._sums: dict[str, torch.Tensor] = {}
        self._count: int | torch.Tensor = 0
        if fabric.is_global_zero:  # what was saved is the total of all processes
            self._sums = {n: self._number(value) for n, value in progress.train_sums.items()}
            self._count = progress.train_count

    def add(self, result: StepResult) -> None:
        for name, value in result.sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.double()
        self._count = self._count + result.count

    def totals(self) -> tuple[dict[str, float], int]:
        """The sums and the number of examples, over all processes."""
        if self._fabric.world_size == 1:
            return {name: float(value) for name, value in self._sums.items()}, int(self._count)
        own = [*(self._sums[name] for name in sorted(self._sums)), self._number(float(self._count))]
        *totals, count = self._fabric.all_reduce(torch.stack(own), reduce_op="sum").tolist()  # type: ignore[union-attr]
        return dict(zip(sorted(self._sums), totals, strict=True)), int(count)

    def clear(self) -> None:
        self._sums, self._count = {}, 0

    def _number(self, value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self._fabric.device)


def _evaluate(task: Task, model: nn.Module, feed: Feed, recipe: Recipe, progress: Progress, fabric: "Fabric") -> None:
    """Add a point to the learning curve; a loss that is not a number ends the run."""
    point = {"step": progress.step, "learning_rate": learning_rate(recipe, progress.step - 1)}
    for name, value in sorted(progress.train_sums.items()):
        point[f"train_{name}"] = value / progress.train_count
    if not math.isfinite(point.get("train_loss", 0.0)):
        raise RunFailed(f"The training loss is not a number by step {progress.step}; lower the learning rate.")
    result = evaluate(task, model, feed, recipe.evaluation_batch, fabric, validating=True)
    if (metric := task.meta.selection_metric) not in result.metrics:
        found = ", ".join(sorted(result.metrics)) or "nothing"
        raise UsageError(
            f"{task.name} selects its weights by {metric}, which its validation does not give; it gives {found}: "
            "name one of these as selected_by."
        )
    if not math.isfinite(result.metrics.get("loss", 0.0)):
        raise RunFailed(f"The validation loss is not a number at step {progress.step}; lower the learning rate.")
    progress.curve.append(point | {f"valid_{name}": value for name, value in result.metrics.items()})
    progress.train_sums, progress.train_count, progress.valid_count = {}, 0, result.count


def _point(progress: Progress) -> Evaluation:
    """The validation scores of the selected weights, from their point of the learning curve."""
    chosen = next(point for point in progress.curve if point["step"] == progress.best_step)
    valid = {name.removeprefix("valid_"): value for name, value in chosen.items() if name.startswith("valid_")}
    return Evaluation(valid, progress.valid_count, {})


def save_weights(weights: Weights, path: Path) -> None:
    with temporary_beside(path) as temporary:
        # Cloned, since a mechanism may tie two parameters and the format does not store shared tensors.
        weights = {name: value.detach().clone().contiguous() for name, value in weights.items()}
        temporary.write_bytes(save(weights))  # `save_file` makes a temporary file that would never be swept
