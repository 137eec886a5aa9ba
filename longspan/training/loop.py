"""The one training loop: from a model and a feed to the evaluated model, whatever happens in between.

Every random number of step t comes from a seed derived from (seed, t), and the order of examples from (seed, epoch). A
killed run therefore resumes from its last checkpoint with exactly the numbers of an uninterrupted one (on a CPU; on a
GPU up to the order of summation).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save
from torch import nn

from longspan.backbones.batch_norm import unsynchronised
from longspan.core.atomic import temporary_beside
from longspan.core.errors import RunFailed, UsageError
from longspan.core.seeding import derive
from longspan.core.signals import deferred
from longspan.datasets.base import Splits
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, Task
from longspan.training.activation_checkpointing import checkpoint_layers
from longspan.training.autosave import Autosave
from longspan.training.belongs import Belongs
from longspan.training.ema import RunningAverage
from longspan.training.evaluation import evaluate
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from longspan.training.parallel import check_parallel
from longspan.training.pretraining import PRETRAINING, pretrain
from longspan.training.progress import Progress
from longspan.training.progress_meter import ProgressMeter
from longspan.training.resume import Resumable
from longspan.training.selection import Selection, Weights
from longspan.training.sharding import in_one_piece, set_up, shard
from longspan.training.steps import Steps
from longspan.training.update import make_update

if TYPE_CHECKING:
    from lightning.fabric import Fabric

NOTHING = Belongs()
SAVE_EVERY_SECONDS = 5.0


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
    recipe = protocol.recipe
    folder.mkdir(parents=True, exist_ok=True)
    model = _on_device(task, model, recipe, fabric)
    seconds_before = 0.0
    if recipe.pretraining_steps:
        stage = {"fabric": fabric, "seed": derive(seed, "pretraining"), "folder": folder / PRETRAINING}
        seconds_before = pretrain(train, task, model, splits, protocol, **stage, belongs=belongs)
    if recipe.parallel == "fsdp" and fabric.world_size > 1:
        shard(model, fabric.device)
    bare, optimizer = model, make_optimizer(model, recipe)
    average = RunningAverage(bare, recipe.average)
    selection = Selection(task.meta, recipe)
    resumable = Resumable(folder, belongs, bare, optimizer, average, recipe, selection)
    progress = resumable.resume(fabric)
    if not progress.step:
        progress.total_seconds += seconds_before
    model, optimizer = set_up(model, optimizer, fabric)
    train_feed, valid_feed, test_feed = (
        task.feed(split, protocol, fabric.device) for split in (splits.train, splits.valid, splits.test)
    )
    steps = Steps(task, bare, train_feed, recipe, fabric, seed)
    steps.resume(progress.step, resumable.carry)
    meter = ProgressMeter(progress, fabric)
    autosave = Autosave(resumable, fabric, SAVE_EVERY_SECONDS if save_every_seconds is None else save_every_seconds)
    update, stage = make_update(task, model, optimizer, recipe, fabric)
    model.train()
    if watch is not None:
        watch(progress, recipe.steps)  # a resumed run shows its progress at once
    with stage, deferred() as stopping:
        while not selection.is_over(progress):
            set_learning_rate(optimizer, learning_rate(recipe, progress.step))
            for result in steps.run(progress.step, update):
                meter.sums.add(result)
            progress.step += 1
            average.update(progress.step)
            evaluates = recipe.evaluates_at(progress.step)
            if evaluates:
                meter.settle()
                with average.in_place():
                    _evaluate(task, model, valid_feed, recipe, progress, fabric)
                    selection.update(progress, bare)
                meter.sums.clear()
            stops, saves = stopping.asked, autosave.is_due
            if fabric.world_size > 1:
                stops, saves = fabric.broadcast((stops, saves)) if evaluates else (False, False)
            saves = saves or stops or selection.is_over(progress)
            if saves:
                if not evaluates:
                    meter.settle()
                autosave.save(progress, steps)
            if evaluates or saves:
                meter.resume_updates()
            if stops:
                stopping.now()
            if watch is not None:
                watch(progress, recipe.steps)
    scores = functools.partial(evaluate, task, model, batch_size=recipe.evaluation_batch, fabric=fabric)
    return _outcome(scores, bare, selection, progress, valid_feed, test_feed)


def _on_device(task: Task, model: nn.Module, recipe: Recipe, fabric: "Fabric") -> nn.Module:
    """The model where it is trained, unless several processes cannot train it as the recipe says."""
    if fabric.world_size > 1 and (alone := unsynchronised(model)):
        raise UsageError(
            f"{alone[0]} is a batch norm of torch, whose statistics are those of one process alone; use that of "
            "longspan.backbones.batch_norm, or one device."
        )
    model = model.to(fabric.device)
    if recipe.checkpoint_activations:
        checkpoint_layers(model)
    check_parallel(task, model, recipe, fabric.world_size)
    return model


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


def _outcome(
    scores: Callable[..., Evaluation],
    model: nn.Module,
    selection: Selection,
    progress: Progress,
    valid_feed: Feed,
    test_feed: Feed,
) -> Trained:
    """The scores of the selected weights, which are loaded into the model."""
    assert progress.best_step is not None
    reported, also = selection.reported(model), None
    if selection.also and progress.also_step != progress.best_step:
        model.load_state_dict(selection.also)
        also = scores(feed=test_feed)
    model.load_state_dict(reported)
    test = scores(feed=test_feed)
    if selection.also and also is None:
        also = test
    averaged = selection.recipe.selection == "mean_of_last"
    valid = scores(feed=valid_feed, validating=True) if averaged else _point(progress)
    weights, also_weights = in_one_piece(model.state_dict()), in_one_piece(selection.also)
    return Trained(valid, test, progress.best_step, progress, weights, also, also_weights)


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
