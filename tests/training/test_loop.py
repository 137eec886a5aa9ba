"""The one loop: the same numbers however often it is interrupted, and a clear end when something goes wrong."""

import dataclasses
import signal
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.core.errors import RunFailed, UsageError
from longspan.runs.fabric import make_fabric
from longspan.tasks.base import Evaluation, StepResult
from longspan.training import autosave, checkpoint, loop, progress_meter
from longspan.training.order import ExampleOrder
from longspan.training.progress import Progress
from longspan.training.progress_meter import TrainingSums
from longspan.training.selection import Selection
from tests.training.copying import Copying
from tests.training.small import RULES, TASK, small_splits, train_small


class Killed(Exception):
    """Stands for the end of the process."""


def kill_at(step):
    def watch(progress, steps):
        if progress.step == step:
            raise Killed

    return watch


def assert_same(one, other):
    """Two outcomes agree in every number but the clocks."""
    assert one.progress.curve == other.progress.curve
    assert one.selected_step == other.selected_step
    for mine, theirs in ((one.valid, other.valid), (one.test, other.test)):
        assert mine.metrics == theirs.metrics
        assert all(np.array_equal(mine.predictions[n], theirs.predictions[n]) for n in mine.predictions)


# --------------------------------------------------------------------------------------------------- order of examples


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 5))
def test_every_epoch_is_a_permutation_and_batches_cross_its_border(count, size, seed):
    order = ExampleOrder(count, size, seed)
    stream = np.concatenate([order.rows(step) for step in range(3 * count // size + 3)])
    assert all(len(order.rows(step)) == size for step in range(3))
    for epoch in range(3):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(st.integers(1, 40), st.integers(1, 15), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_the_order_does_not_depend_on_where_one_starts(count, size, steps):
    whole = ExampleOrder(count, size, 0)
    expected = [whole.rows(step) for step in range(31)]
    jumping = ExampleOrder(count, size, 0)
    assert all(np.array_equal(jumping.rows(step), expected[step]) for step in steps)


def test_seeds_and_epochs_are_shuffled_differently():
    rows = [ExampleOrder(50, 50, seed).rows(step).tolist() for seed in (0, 1) for step in (0, 1)]
    assert len({tuple(r) for r in rows}) == 4


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 5))
def test_with_drop_last_every_epoch_has_whole_batches_of_its_own_shuffle_only(count, size, seed):
    if count < size:
        with pytest.raises(UsageError, match="make none of"):
            ExampleOrder(count, size, seed, drop_last=True)
        return
    order, whole = ExampleOrder(count, size, seed, drop_last=True), ExampleOrder(count, count, seed)
    for epoch in range(3):
        rows = np.concatenate([order.rows(epoch * (count // size) + step) for step in range(count // size)])
        assert np.array_equal(rows, whole.rows(epoch)[: len(rows)])
        assert len(rows) == count // size * size


@given(st.integers(8, 40), st.integers(1, 8), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_with_drop_last_too_the_order_does_not_depend_on_where_one_starts(count, size, steps):
    whole, jumping = (ExampleOrder(count, size, 0, drop_last=True) for _ in range(2))
    expected = [whole.rows(step) for step in range(31)]
    assert all(np.array_equal(jumping.rows(step), expected[step]) for step in steps)


# ---------------------------------------------------------------------------------------------------------------- sums


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.data())
@settings(deadline=None)
def test_sums_are_the_same_to_the_last_bit_wherever_a_run_was_cut(values, data):
    fabric = make_fabric("cpu", "fp32", 1)
    cuts = data.draw(st.sets(st.integers(0, len(values))))

    def total(cuts):
        progress = Progress()
        sums = TrainingSums(progress, fabric)
        for place, value in enumerate(values):
            if place in cuts:
                progress.train_sums, progress.train_count = sums.totals()
                sums = TrainingSums(progress, fabric)  # as in the next process
            sums.add(StepResult(torch.zeros(()), {"loss": torch.tensor(value, dtype=torch.float64)}, 2))
        return sums.totals()

    assert total(cuts) == total(set())
    assert total(cuts)[1] == 2 * len(values)


# -------------------------------------------------------------------------------------------------------------- curves


def test_the_curve_has_a_point_per_evaluation_and_one_at_the_end(tmp_path):
    trained = train_small(tmp_path)
    assert [point["step"] for point in trained.progress.curve] == [5, 10, 12]
    for point in trained.progress.curve:
        assert {"train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "learning_rate"} <= point.keys()


def test_the_train_loss_is_the_mean_over_the_examples_seen(tmp_path):
    torch.manual_seed(3)
    model = TASK.model(attentions.get("none"), RULES)
    point = train_small(tmp_path, network=model, learning_rate=0.0, steps=5).progress.curve[0]
    feed, order = TASK.feed(small_splits().train, RULES, "cpu"), ExampleOrder(10, 4, 0)
    rows = np.concatenate([order.rows(step) for step in range(5)])
    with torch.no_grad():
        expected = TASK.evaluate(model, feed, rows, 1).metrics
    assert point["train_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert point["train_accuracy"] == pytest.approx(expected["accuracy"])


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("selection", ["best", "last"])
def test_what_is_reported_is_the_selected_point_of_the_curve(tmp_path, selection, average):
    rates = {"learning_rate": 0.05, "steps": 30, "evaluate_every": 3}
    trained = train_small(tmp_path, selection=selection, average=average, **rates)
    curve = trained.progress.curve
    scores = [point["valid_accuracy"] for point in curve]
    assert len(set(scores)) > 1, "the test needs a curve that moves"
    chosen = scores.index(max(scores)) if selection == "best" else len(curve) - 1
    assert trained.selected_step == curve[chosen]["step"]
    assert trained.valid.metrics["accuracy"] == curve[chosen]["valid_accuracy"]
    assert trained.valid.metrics["loss"] == pytest.approx(curve[chosen]["valid_loss"], rel=1e-6)
    assert (trained.valid.count, trained.test.count) == (6, 7)


def test_averaged_weights_give_another_curve_than_their_own(tmp_path):
    own, averaged = (train_small(tmp_path / str(a), average=a, learning_rate=0.05) for a in (0.0, 0.9))
    assert [p["train_loss"] for p in own.progress.curve] == [p["train_loss"] for p in averaged.progress.curve]
    assert own.progress.curve[-1]["valid_loss"] != averaged.progress.curve[-1]["valid_loss"]


def test_gradients_are_clipped_where_the_recipe_says_so(tmp_path):
    own, clipped = (train_small(tmp_path / str(c), clip=c, eps=1.0) for c in (None, 1e-6))  # eps: size matters to Adam
    assert own.progress.curve[-1]["train_loss"] != clipped.progress.curve[-1]["train_loss"]
    still = train_small(tmp_path / "still", learning_rate=0.0)
    assert clipped.progress.curve[-1]["valid_loss"] == pytest.approx(still.progress.curve[-1]["valid_loss"], rel=1e-3)


def test_evaluation_turns_dropout_off_and_training_on_again():
    model = nn.Dropout(0.5)
    feed = TASK.feed(small_splits().valid, RULES, "cpu")
    seen = []

    class Looking(type(TASK)):
        def evaluate(self, model, feed, rows, batch_size):
            seen.append((model.training, torch.is_grad_enabled(), rows.tolist()))
            return Evaluation({}, 0, {})

    loop.evaluate(Looking(), model.train(), feed, 2, make_fabric("cpu", "fp32", 1))
    assert seen == [(False, False, list(range(6)))]
    assert model.training


# ---------------------------------------------------------------------------------------- batches gone through in parts


@pytest.mark.parametrize("task", [TASK, Copying()], ids=["rows", "tokens"])
@pytest.mark.parametrize("accumulate", [2, 4])
def test_parts_of_a_batch_give_the_numbers_of_the_whole(tmp_path, task, accumulate):
    """Also where parts differ in token count, with clipping and a decay that would expose a wrong gradient scale."""
    rest = {"task": task, "clip": 0.5, "optimizer": "adam", "eps": 1e-2}
    whole = train_small(tmp_path / "whole", **rest).progress.curve
    parts = train_small(tmp_path / "parts", accumulate=accumulate, **rest).progress.curve
    for one, other in zip(whole, parts, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_a_part_has_its_share_of_the_rows(tmp_path):
    sizes = []

    class Watching(type(TASK)):
        def loss(self, model, batch, *, smoothing=0.0):
            sizes.append(len(batch.label))
            return super().loss(model, batch, smoothing=smoothing)

    train_small(tmp_path, task=Watching(), steps=2, accumulate=2)
    assert sizes == [2, 2, 2, 2]


def test_labels_are_smoothed_in_training_and_never_in_validation(tmp_path):
    plain, smooth = (
        train_small(tmp_path / str(share), learning_rate=0.0, label_smoothing=share).progress.curve
        for share in (0.0, 0.5)
    )
    assert [point["valid_loss"] for point in plain] == [point["valid_loss"] for point in smooth]
    assert all(one["train_loss"] != other["train_loss"] for one, other in zip(plain, smooth, strict=True))


# ------------------------------------------------------------------------------------------------------------- patience


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4), st.booleans())
def test_patience_ends_a_run_after_so_many_evaluations_without_a_better_score(scores, patience, higher):
    task = TASK if higher else Copying()
    recipe = dataclasses.replace(RULES.recipe, steps=100, patience=patience)
    points = [{"step": i, f"valid_{task.meta.score}": float(score)} for i, score in enumerate(scores, start=1)]
    best, waited, expected = None, 0, False
    for score in scores:
        better = best is None or (score > best if higher else score < best)
        best, waited = (score, 0) if better else (best, waited + 1)
        expected = waited >= patience
        if expected:
            break
    over = [Selection(task.meta, recipe).is_over(Progress(step=i, curve=points[:i])) for i in range(len(points) + 1)]
    assert any(over) == expected
    assert not any(Selection(task.meta, RULES.recipe).is_over(Progress(step=i, curve=points[:i])) for i in range(12))


def test_a_run_that_no_longer_improves_reports_its_best_and_stops(tmp_path):
    rest = {"task": Copying(), "evaluate_every": 2, "steps": 40, "schedule": "constant", "learning_rate": 0.3}
    whole = train_small(tmp_path / "whole", **rest)
    stopped = train_small(tmp_path / "stopped", patience=2, **rest)
    curve, steps = stopped.progress.curve, [point["step"] for point in stopped.progress.curve]
    assert steps[-1] < 40
    assert curve == whole.progress.curve[: len(curve)]
    assert stopped.selected_step == steps[-3]
    assert stopped.valid.metrics["perplexity"] == min(point["valid_perplexity"] for point in curve)
    again = train_small(tmp_path / "stopped", patience=2, **rest)  # a stopped run does not continue
    assert again.progress.step == steps[-1]
    assert_same(again, stopped)


# -------------------------------------------------------------------------------------------------------- interruptions


STORMY = {"average": 0.9, "clip": 1.0, "learning_rate": 0.02, "schedule": "linear"}
DROPOUT = TASK.protocol("longspan", "smoke").override(
    {"model.dim": 8, "model.layers": 1, "model.mlp": 8, "model.dropout": 0.3, "model.attention_dropout": 0.2}
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return {
        name: train_small(tmp_path_factory.mktemp("unbroken"), mechanism=name, model=DROPOUT.model, **STORMY)
        for name in ("softmax", "performer", "s4d")
    }


@pytest.mark.parametrize("mechanism", ["softmax", "performer", "s4d"])
@given(kills=st.lists(st.integers(1, 12), max_size=3).map(sorted), every_step=st.booleans())
@settings(deadline=None, max_examples=8)
def test_a_run_that_was_killed_ends_with_the_numbers_of_an_unbroken_one(
    unbroken, tmp_path_factory, mechanism, kills, every_step
):
    folder = tmp_path_factory.mktemp("run")
    rest = {"mechanism": mechanism, "model": DROPOUT.model, "save_every_seconds": -1.0 if every_step else 60.0} | STORMY
    for step in kills:
        try:
            train_small(folder, watch=kill_at(step), **rest)
        except Killed:
            torch.manual_seed(99)  # nothing may depend on the random state of the next process
    trained = train_small(folder, **rest)
    assert_same(trained, unbroken[mechanism])


CROWDED = {  # everything at once: whole epochs of two and a half batches, parts, smoothing, patience
    "task": Copying(),
    "drop_last": True,
    "accumulate": 2,
    "label_smoothing": 0.1,
    "patience": 2,
    "optimizer": "adam",
    "evaluate_every": 2,
    "steps": 40,
    "clip": 1.0,
    "learning_rate": 0.2,
    "average": 0.5,
}


class Cut(Copying):
    """The process ends while the gradient of some part of a batch is being computed."""

    def __init__(self, part):
        self.left = part

    def loss(self, model, batch, *, smoothing=0.0):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().loss(model, batch, smoothing=smoothing)


@pytest.mark.parametrize(
    "schedule, parts",
    [
        ({"schedule": "inverse_sqrt", "initial_rate": 1e-4}, [5, 3, 0]),  # the second part of the third batch
        ({"schedule": "polynomial", "power": 2.0}, [25, 1]),  # after an evaluation that was worse
        ({"schedule": "exponential", "decay_rate": 0.7, "decay_every": 3}, [23, 9]),
    ],
)
@pytest.mark.parametrize("every_step", [True, False])
def test_nothing_of_it_shows_where_a_run_was_cut(tmp_path, schedule, parts, every_step):
    """In the middle of an epoch, of the parts of a batch, and of a patience count."""
    rest = CROWDED | schedule
    whole = train_small(tmp_path / "whole", **rest)
    how = {"save_every_seconds": -1.0 if every_step else 60.0}
    for part in parts:
        with pytest.raises(Killed):
            train_small(tmp_path / "cut", **rest | how | {"task": Cut(part)})
        torch.manual_seed(99)
    trained = train_small(tmp_path / "cut", **rest | how)
    assert_same(trained, whole)
    assert trained.progress.step == whole.progress.step < CROWDED["steps"]  # both ended by patience


@pytest.mark.parametrize("damage", [lambda content: content[:-100], lambda content: b"", lambda content: content[::-1]])
def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(unbroken, tmp_path, damage):
    rest = {"model": DROPOUT.model, "save_every_seconds": -1.0} | STORMY
    with pytest.raises(Killed):
        train_small(tmp_path, watch=kill_at(8), **rest)
    newest = sorted(tmp_path.glob("checkpoint-*.pt"))[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    begun = []
    trained = train_small(tmp_path, watch=lambda progress, _: begun.append(progress.step), **rest)
    assert begun[0] == int(newest.stem.split("-")[1]) - 1
    assert trained.progress.resumed == 1
    assert_same(trained, unbroken["softmax"])


def test_damaged_checkpoints_never_crowd_out_sound_ones(tmp_path):
    for step in (100, 200):
        checkpoint.save(tmp_path, step, {}).write_bytes(b"damaged")
    with pytest.raises(Killed):
        train_small(tmp_path, watch=kill_at(4), save_every_seconds=-1.0)
    state, damaged = checkpoint.latest(tmp_path)
    assert damaged == []
    assert state["progress"]["step"] in (3, 4)


def test_a_run_killed_after_its_last_step_shows_its_whole_curve_again(tmp_path):
    whole = train_small(tmp_path)
    seen = []
    again = train_small(tmp_path, watch=lambda progress, _: seen.append(list(progress.curve)))
    assert seen == [whole.progress.curve]  # nothing is trained, but logs can still be written
    assert_same(again, whole)


def test_a_resumed_run_goes_on_counting_time_and_resumptions(tmp_path):
    seconds = [0.0]
    for step in (4, 8):
        with pytest.raises(Killed):
            train_small(tmp_path, watch=kill_at(step), save_every_seconds=-1.0)
        seconds.append(checkpoint.latest(tmp_path)[0]["progress"]["total_seconds"])
    trained = train_small(tmp_path)
    assert trained.progress.resumed == 2
    assert [*seconds, trained.progress.total_seconds] == sorted({*seconds, trained.progress.total_seconds})


def test_the_peak_of_memory_is_that_of_all_stretches_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_meter, "peak_memory_bytes", lambda device: 9_000)
    with pytest.raises(Killed):
        train_small(tmp_path, watch=kill_at(4), save_every_seconds=-1.0)
    monkeypatch.setattr(progress_meter, "peak_memory_bytes", lambda device: 2_000)
    assert train_small(tmp_path).progress.peak_bytes == 9_000


def test_how_often_to_save_is_read_when_training_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1.0)
    with pytest.raises(Killed):
        train_small(tmp_path, watch=kill_at(3))
    assert checkpoint.latest(tmp_path)[0]["progress"]["step"] == 3


def test_seeds_give_different_runs(tmp_path):
    one, other = (train_small(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert one.progress.curve != other.progress.curve


# -------------------------------------------------------------------------------------------------------------- ctrl-c


def ctrl_c_at(step):
    def watch(progress, steps):
        if progress.step == step:
            signal.raise_signal(signal.SIGINT)

    return watch


def test_ctrl_c_finishes_the_step_saves_and_the_next_call_goes_on(unbroken, tmp_path):
    rest = {"model": DROPOUT.model} | STORMY
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path, watch=ctrl_c_at(7), **rest)
    assert signal.getsignal(signal.SIGINT) is handler
    assert checkpoint.latest(tmp_path)[0]["progress"]["step"] == 8
    assert_same(train_small(tmp_path, **rest), unbroken["softmax"])


def test_ctrl_c_at_the_worst_moment_loses_nothing(tmp_path, monkeypatch):
    class Unlucky(autosave.Stopwatch):
        """The signal arrives after the loop has looked for it, while it asks whether saving is due."""

        asked = 0

        def elapsed(self):
            if threading.current_thread() is threading.main_thread():
                Unlucky.asked += 1
                if Unlucky.asked == 4:
                    signal.raise_signal(signal.SIGINT)
            return super().elapsed()

    monkeypatch.setattr(autosave, "Stopwatch", Unlucky)
    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path)
    state, _ = checkpoint.latest(tmp_path)
    assert state is not None


# ----------------------------------------------------------------------------------------------------------------- NaN


def test_a_loss_that_is_not_a_number_ends_the_run_with_a_sentence(tmp_path):
    with pytest.raises(RunFailed, match=r"loss is not a number (by|at) step 5; lower the learning rate"):
        train_small(tmp_path, learning_rate=1e30)


class Breaking(type(TASK)):
    """Finite in training, NaN in validation."""

    def evaluate(self, model, feed, rows, batch_size):
        result = super().evaluate(model, feed, rows, batch_size)
        result.metrics["loss"] = float("nan")
        return result


def test_a_validation_loss_that_is_not_a_number_ends_it_too(tmp_path):
    with pytest.raises(RunFailed, match="validation loss is not a number at step 5"):
        train_small(tmp_path, task=Breaking())
