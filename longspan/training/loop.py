"""The one training loop: from a model and a feed to the evaluated model, whatever happens in between.

Every random number of step t comes from a seed derived from (seed, t), and the order of examples from (seed, epoch).
A run that was killed therefore goes on from its last checkpoint to exactly the numbers of an uninterrupted one (on a
CPU; on a GPU up to the order of summation).
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from safetensors.torch import save
from torch import nn

from longspan.core.atomic import temporary_beside
from longspan.core.errors import RunFailed, UsageError
from longspan.core.meter import Stopwatch
from longspan.core.seeding import derive
from longspan.core.signals import deferred
from longspan.datasets.base import Splits
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task
from longspan.training.belongs import Belongs
from longspan.training.cuda_graph_step import Captured, CudaGraphs, Update
from longspan.training.ema import RunningAverage
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from longspan.training.resume import Progress, Resumable

NOTHING = Belongs()
SAVE_EVERY_SECONDS = 5.0  # and never more often than leaves 95 % of the time for training


@dataclass(frozen=True)
class Trained:
    """The outcome: the selected model's scores and how it came about."""

    valid: Evaluation
    test: Evaluation
    selected_step: int
    progress: Progress


Watcher = Callable[[Progress, int], None]


def train(
    task: Task,
    model: nn.Module,
    splits: Splits,
    protocol: Protocol,
    *,
    fabric: Fabric,
    seed: int,
    folder: Path,
    belongs: Belongs = NOTHING,
    watch: Watcher | None = None,
    save_every_seconds: float | None = None,
) -> Trained:
    """Train to the last step of the recipe, resuming from a checkpoint in `folder`, and score the selected weights.

    A checkpoint is resumed if it `belongs` to this very run and is sound in every part; others are set aside.
    `save_every_seconds` is SAVE_EVERY_SECONDS unless given, and below 0 after every step. Ctrl-C, SIGTERM and SIGUSR1
    stop it after the step at hand, once that is saved. Several processes save, and react to a signal, at evaluations
    only, where they synchronise anyway.
    """
    save_every_seconds = SAVE_EVERY_SECONDS if save_every_seconds is None else save_every_seconds
    recipe = protocol.recipe
    folder.mkdir(parents=True, exist_ok=True)
    model = model.to(fabric.device)
    bare, optimizer = model, make_optimizer(model, recipe)
    average = RunningAverage(bare, recipe.average)
    resumable = Resumable(folder, belongs, bare, optimizer, average, recipe, task.meta.score)
    progress, best = resumable.resume(fabric)
    model, optimizer = fabric.setup(model, optimizer)
    train_feed, valid_feed, test_feed = (
        task.feed(split, protocol, fabric.device) for split in (splits.train, splits.valid, splits.test)
    )
    order = ExampleOrder(len(train_feed), recipe.batch_size, seed, drop_last=recipe.drop_last)
    device = str(fabric.device)
    whole, stretch, since_save = Stopwatch(device), Stopwatch(device), Stopwatch("cpu")
    spent, sums, pause = progress.total_seconds, TrainingSums(progress, fabric), save_every_seconds

    def settle() -> None:
        """Bring device-side sums and clocks into `progress`."""
        progress.train_seconds += stretch.elapsed()
        progress.total_seconds = spent + whole.elapsed()
        progress.train_sums, progress.train_count = sums.totals()

    def save() -> None:
        nonlocal pause
        since_save.restart()
        if fabric.is_global_zero:
            resumable.save(best, progress)
        if save_every_seconds > 0:
            pause = max(save_every_seconds, 20 * since_save.elapsed())
        since_save.restart()

    update, stage = make_update(task, model, optimizer, recipe, fabric)
    model.train()
    if watch is not None:
        watch(progress, recipe.steps)  # a resumed run shows its progress at once
    with stage, deferred() as stopping:
        while not _is_over(task, progress, recipe):
            step = progress.step
            set_learning_rate(optimizer, learning_rate(recipe, step))
            rows = order.rows(step)[fabric.global_rank :: fabric.world_size]
            torch.manual_seed(derive(seed, "batch", step))  # what is drawn for a row is the same in every process
            parts = [train_feed.batch(part) for part in np.split(rows, recipe.accumulate)]
            torch.manual_seed(derive(seed, "step", step, fabric.global_rank))
            for result in update(parts):
                sums.add(result)
            progress.step = step + 1
            average.update(progress.step)
            due = progress.step % recipe.evaluate_every == 0 or progress.step == recipe.steps
            if due:
                settle()
                with average.in_place():
                    _evaluate(task, model, valid_feed, recipe, progress, fabric)
                    if _is_better(task, progress, recipe.selection):
                        progress.best_step = progress.step
                        progress.best_score = progress.curve[-1][f"valid_{task.meta.score}"]
                        best = {name: value.detach().clone() for name, value in bare.state_dict().items()}
                sums.clear()
            stop, late = stopping.asked, since_save.elapsed() > pause
            if fabric.world_size > 1:
                stop, late = fabric.broadcast((stop, late)) if due else (False, False)
            if stop or late or _is_over(task, progress, recipe):
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
    bare.load_state_dict(best)
    test = evaluate(task, model, test_feed, recipe.evaluation_batch, fabric)
    return Trained(_point(progress), test, progress.best_step, progress)


def make_update(
    task: Task, model: Any, optimizer: Any, recipe: Recipe, fabric: Fabric
) -> tuple[Update, contextlib.AbstractContextManager]:
    """One step of the optimiser on a batch in parts, and where it must run; on a single GPU it is recorded."""

    def update(parts: Sequence[Any]) -> list[StepResult]:
        optimizer.zero_grad(set_to_none=True)
        results = _descend(task, model, parts, recipe, fabric)
        if recipe.clip is not None:
            fabric.clip_gradients(model, optimizer, max_norm=recipe.clip, error_if_nonfinite=False)
        optimizer.step()
        return results

    if fabric.device.type != "cuda" or fabric.world_size > 1:
        return update, contextlib.nullcontext()
    recorder = CudaGraphs()
    return Captured(update, recorder), recorder.stage()


def _descend(task: Task, model: Any, parts: Sequence[Any], recipe: Recipe, fabric: Fabric) -> list[StepResult]:
    """Accumulate the gradient of a whole batch in the parameters.

    Parts and processes are weighted by their counts, so that however a batch is divided the gradient is that of the
    whole. Processes average what they have, hence their number in the end.
    """
    results, whole = [], len(parts) == fabric.world_size == 1
    for part in parts:
        with fabric.no_backward_sync(model, enabled=part is not parts[-1]):
            result = task.loss(model, part, smoothing=recipe.label_smoothing)
            fabric.backward(result.loss if whole else result.loss * result.count)
        results.append(replace(result, loss=result.loss.detach()))
    if not whole:
        count = _over_processes(sum(result.count for result in results), fabric)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(count / fabric.world_size)
    return results


def _over_processes(count: int | torch.Tensor, fabric: Fabric) -> int | torch.Tensor:
    """The sum of all processes' counts, on the device."""
    if fabric.world_size == 1:
        return count
    mine = torch.as_tensor(count, dtype=torch.float64, device=fabric.device)
    return fabric.all_reduce(mine, reduce_op="sum")  # type: ignore[return-value]


class TrainingSums:
    """What a step reports, summed on the device since the last evaluation.

    Numbers are added one by one whether a run was interrupted or not, so that a resumed one has the same bits.
    """

    def __init__(self, progress: Progress, fabric: Fabric):
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


class ExampleOrder:
    """Which rows step t sees: an endless stream of full shuffles, each drawn from (seed, epoch).

    With `drop_last` an epoch ends when no whole batch is left of its shuffle.
    """

    def __init__(self, count: int, batch_size: int, seed: int, *, drop_last: bool = False):
        if drop_last and count < batch_size:
            raise UsageError(
                f"With drop_last an epoch has whole batches only, but {count} examples make none of {batch_size}; "
                "choose a smaller batch_size, or drop_last=False."
            )
        self.count, self.batch_size, self.seed, self.drop_last = count, batch_size, seed, drop_last
        self._epoch, self._shuffle = -1, np.empty(0, np.int64)

    def rows(self, step: int) -> np.ndarray:
        if self.drop_last:
            epoch, place = divmod(step, self.count // self.batch_size)
            return self._of_epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        first = step * self.batch_size
        places = np.arange(first, first + self.batch_size)
        return np.concatenate(
            [self._of_epoch(e)[places[places // self.count == e] % self.count] for e in self._epochs(places)]
        )

    def _epochs(self, places: np.ndarray) -> range:
        return range(int(places[0]) // self.count, int(places[-1]) // self.count + 1)

    def _of_epoch(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffle = np.random.default_rng(derive(self.seed, "epoch", epoch)).permutation(self.count)
        return self._shuffle


def evaluate(task: Task, model: nn.Module, feed: Feed, batch_size: int, fabric: Fabric) -> Evaluation:
    """Scores on all rows of a feed, shared between processes if there is one for each, with dropout off."""
    model.eval()
    rows = np.arange(len(feed))
    shared = 1 < fabric.world_size <= len(rows)
    mine = rows[fabric.global_rank :: fabric.world_size] if shared else rows
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # compiling once more would take longer
        result = task.evaluate(model, feed, mine, batch_size)
    model.train()
    return _gather(task, result, fabric) if shared else result


def _gather(task: Task, mine: Evaluation, fabric: Fabric) -> Evaluation:
    """Join the shares of all processes: means weighted by their counts, predictions in the order of rows."""
    shares: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(shares, mine)
    return join(task, shares)


def join(task: Task, shares: Sequence[Evaluation]) -> Evaluation:
    """What one process would have found on the rows of all shares."""
    metrics, counts = {}, {n: sum(share.counts[n] for share in shares) for n in shares[0].counts}
    count = sum(share.count for share in shares)
    for name in shares[0].metrics:
        total = sum(share.metrics[name] * share.counts.get(name, share.count) for share in shares)
        metrics[name] = total / counts.get(name, count)
    joined = {n: np.concatenate([share.predictions[n] for share in shares]) for n in shares[0].predictions}
    order = np.argsort(joined["row"], kind="stable")
    predictions = {n: values[order] for n, values in joined.items()}
    return Evaluation(metrics | task.derived(metrics), count, predictions, counts)


def _evaluate(task: Task, model: nn.Module, feed: Feed, recipe: Recipe, progress: Progress, fabric: Fabric) -> None:
    """Add a point to the learning curve; a loss that is not a number ends the run."""
    point = {"step": progress.step, "learning_rate": learning_rate(recipe, progress.step - 1)}
    for name, value in sorted(progress.train_sums.items()):
        point[f"train_{name}"] = value / progress.train_count
    if not math.isfinite(point.get("train_loss", 0.0)):
        raise RunFailed(f"The training loss is not a number by step {progress.step}; lower the learning rate.")
    result = evaluate(task, model, feed, recipe.evaluation_batch, fabric)
    if not math.isfinite(result.metrics.get("loss", 0.0)):
        raise RunFailed(f"The validation loss is not a number at step {progress.step}; lower the learning rate.")
    progress.curve.append(point | {f"valid_{name}": value for name, value in result.metrics.items()})
    progress.train_sums, progress.train_count, progress.valid_count = {}, 0, result.count


def _point(progress: Progress) -> Evaluation:
    """The selected point of the learning curve, which says how those weights did on the validation set."""
    chosen = next(point for point in progress.curve if point["step"] == progress.best_step)
    valid = {name.removeprefix("valid_"): value for name, value in chosen.items() if name.startswith("valid_")}
    return Evaluation(valid, progress.valid_count, {})


def _is_better(task: Task, progress: Progress, selection: str) -> bool:
    """Whether the point just added to the curve is the one to report so far."""
    score = progress.curve[-1][f"valid_{task.meta.score}"]
    if selection == "last" or progress.best_score is None:
        return True
    return score > progress.best_score if task.meta.higher_is_better else score < progress.best_score


def _is_over(task: Task, progress: Progress, recipe: Recipe) -> bool:
    """Whether all steps are done, or `patience` evaluations in a row have brought nothing better."""
    if progress.step >= recipe.steps:
        return True
    if recipe.patience is None or len(progress.curve) <= recipe.patience:
        return False
    sign = 1 if task.meta.higher_is_better else -1
    scores = [sign * point[f"valid_{task.meta.score}"] for point in progress.curve]
    return len(scores) - 1 - scores.index(max(scores)) >= recipe.patience


def save_weights(model: nn.Module, path: Path) -> None:
    with temporary_beside(path) as temporary:
        # A clone each, since a mechanism may tie two parameters and the format holds no ties.
        weights = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
        temporary.write_bytes(save(weights))  # `save_file` has a temporary of its own, which nobody would sweep
