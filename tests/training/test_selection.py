"""Which weights are reported: the best by the task's metric, the mean of the last, and a second choice."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.core.errors import UsageError
from longspan.tasks.base import Evaluation, Recipe
from longspan.training import checkpoint
from longspan.training.mean_of_last import MeanOfLast
from tests.training.parted import Parted
from tests.training.small import RULES, TASK, small_splits, train_small
from tests.training.test_loop import Killed, assert_same, kill_at

MOVING = {"learning_rate": 0.05, "schedule": "constant", "warmup": 0}


def recipe(**settings):
    return Recipe(**({"steps": 12, "batch_size": 4, "learning_rate": 0.1, "warmup": 0} | settings))


# ---------------------------------------------------------------------------------------------------- evaluations


@given(st.integers(1, 50), st.integers(1, 12), st.one_of(st.none(), st.integers(1, 60)), st.integers(0, 50))
def test_the_evaluations_of_a_run_are_known_before_it(steps, every, also, until):
    found = recipe(steps=steps, evaluate_every=every, also_at=also)
    assert found.evaluations() == [step for step in range(1, steps + 1) if found.evaluates_at(step)]
    assert found.evaluations(min(until, steps)) == [step for step in found.evaluations() if step <= until]
    assert found.evaluations()[-1] == steps


# ------------------------------------------------------------------------------------------------- mean of the last


class Counting(nn.Module):
    """A weight, running statistics and a batch counter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.norm = nn.BatchNorm1d(2)


def test_the_mean_of_five_states_is_the_arithmetic_mean_of_every_tensor():
    mean, model = MeanOfLast(recipe(steps=8, evaluate_every=1, selection="mean_of_last")), Counting()
    states = []
    for step in range(1, 9):
        with torch.no_grad():
            for value in (model.weight, model.norm.running_mean, model.norm.bias):
                value.normal_()
            model.norm.num_batches_tracked.add_(7)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        mean.update(step, model.state_dict())
    found = mean.mean(model.state_dict())
    assert found.keys() == states[-1].keys()
    for name, value in found.items():
        last = [state[name] for state in states[3:]]
        assert value.dtype == last[0].dtype
        if name == "norm.num_batches_tracked":
            assert value == last[-1] == 56
        else:
            torch.testing.assert_close(value, torch.stack(last).mean(dim=0))


@pytest.mark.parametrize("averaged, steps", [(1, [12]), (3, [6, 9, 12]), (9, [3, 6, 9, 12])])
def test_what_is_scored_is_the_mean_of_the_weights_at_the_last_evaluations(tmp_path, averaged, steps):
    seen = {}

    class Watching(type(TASK)):
        def validate(self, model, feed, rows, batch_size):
            seen[len(seen)] = {name: value.clone() for name, value in model.state_dict().items()}
            return super().validate(model, feed, rows, batch_size)

    torch.manual_seed(0)
    model = TASK.model(attentions.get("none"), RULES)
    rest = MOVING | {"selection": "mean_of_last", "averaged": averaged, "evaluate_every": 3}
    trained = train_small(tmp_path, task=Watching(), network=model, **rest)
    assert [point["step"] for point in trained.progress.curve] == [3, 6, 9, 12]
    chosen = [seen[step // 3 - 1] for step in steps]
    bare = {name.removeprefix("_forward_module."): value for name, value in model.state_dict().items()}
    for name, value in bare.items():
        expected = torch.stack([state[name].double() for state in chosen]).mean(dim=0)
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)
    feeds = {split: TASK.feed(getattr(small_splits(), split), RULES, "cpu") for split in ("valid", "test")}
    with torch.no_grad():
        for split, reported in (("valid", trained.valid), ("test", trained.test)):
            own = TASK.evaluate(model.eval(), feeds[split], np.arange(len(feeds[split])), 64)
            assert reported.metrics == pytest.approx(own.metrics, rel=1e-6)
    assert trained.selected_step == 12


WAYS = {
    "mean of the last": {"selection": "mean_of_last", "averaged": 3, "evaluate_every": 2},
    "a second choice": {"also_at": 7, "evaluate_every": 2, "learning_rate": 0.3},
    "by length": {"order": "by_length", "accumulate": 2, "parts": "sum_over_samples"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_that_was_killed_reports_to_the_last_bit_what_an_unbroken_one_does(tmp_path, way):
    rest = MOVING | {"task": Parted(), "average": 0.5} | way
    whole = train_small(tmp_path / "whole", **rest)
    for step in (1, 5, 7, 8, 9, 11, 12):
        with pytest.raises(Killed):
            train_small(tmp_path / "cut", watch=kill_at(step), save_every_seconds=-1.0, **rest)
        torch.manual_seed(99)
    cut = train_small(tmp_path / "cut", **rest)
    assert_same(cut, whole)
    assert (cut.also and cut.also.metrics) == (whole.also and whole.also.metrics)
    assert cut.also_weights.keys() == whole.also_weights.keys()
    assert all(torch.equal(cut.also_weights[name], whole.also_weights[name]) for name in whole.also_weights)


def test_a_sum_of_weights_does_not_fit_another_model_and_is_not_used(tmp_path, capsys):
    rest = MOVING | WAYS["mean of the last"]
    whole = train_small(tmp_path / "whole", **rest)
    with pytest.raises(Killed):
        train_small(tmp_path / "cut", watch=kill_at(11), save_every_seconds=-1.0, **rest)
    newest = checkpoint.newest_first(tmp_path / "cut")[0]
    state = checkpoint.load(newest)
    assert all(value.dtype == torch.float64 for value in state["sum"].values() if value.is_floating_point())
    assert state["best"] == {}
    state["sum"].popitem()
    checkpoint.save(newest.parent, checkpoint.step_of(newest), state)
    assert_same(train_small(tmp_path / "cut", **rest), whole)
    assert "a sum of weights that does not fit the model" in capsys.readouterr().err


def test_a_mean_needs_to_know_where_the_run_ends():
    for more in ({"patience": 3}, {"also_at": 5}):
        with pytest.raises(UsageError, match="mean_of_last averages the last evaluations of a run whose end is known"):
            recipe(selection="mean_of_last", **more)


# ----------------------------------------------------------------------------------------------------- second choice


@pytest.mark.parametrize("selection", ["best", "last"])
def test_a_second_choice_is_that_of_a_run_that_ended_there(tmp_path, selection):
    """With a schedule without an end, the first steps of a long run equal a short run."""
    rest = {"learning_rate": 0.2, "schedule": "inverse_sqrt", "warmup": 2, "evaluate_every": 3, "selection": selection}
    short = train_small(tmp_path / "short", task=Parted(), steps=7, **rest)
    long = train_small(tmp_path / "long", task=Parted(), steps=20, also_at=7, **rest)
    assert [point["step"] for point in long.progress.curve] == [3, 6, 7, 9, 12, 15, 18, 20]
    assert long.progress.also_step == short.selected_step
    assert long.also.metrics == short.test.metrics
    assert long.test.metrics != short.test.metrics
    assert np.array_equal(long.also.predictions["nats"], short.test.predictions["nats"])


def test_a_second_choice_at_or_beyond_the_end_is_none(tmp_path):
    for step in (12, 500):
        trained = train_small(tmp_path / str(step), also_at=step)
        assert trained.also is None
        assert trained.also_weights == {}


# ----------------------------------------------------------------------------------- validation apart from evaluation


def test_training_asks_for_the_validation_and_the_end_for_the_evaluation(tmp_path):
    asked = []

    class Dear(Parted):
        def validate(self, model, feed, rows, batch_size):
            asked.append(("validate", len(rows)))
            return super().validate(model, feed, rows, batch_size)

        def evaluate(self, model, feed, rows, batch_size):
            asked.append(("evaluate", len(rows)))
            return super().evaluate(model, feed, rows, batch_size)

    trained = train_small(tmp_path, task=Dear())
    assert asked == [("validate", 6)] * 3 + [("evaluate", 7)]
    assert trained.valid.metrics.keys() == {"nats_a_row"}
    assert trained.test.metrics.keys() == {"loss", "spread"}
    nats, category = (trained.test.predictions[name] for name in ("nats", "category"))
    assert trained.test.metrics["spread"] == pytest.approx(np.mean([nats[category == one].mean() for one in range(3)]))


@pytest.mark.parametrize("higher", [None, True, False])
def test_the_best_is_that_of_the_metric_and_direction_that_the_task_names(tmp_path, higher):
    scores = itertools.chain([5.0, 3.0, 9.0, 4.0], itertools.repeat(4.0))

    class Named(Parted):
        meta = dataclasses.replace(Parted.meta, selected_by="cost", selected_higher=higher, higher_is_better=False)

        def validate(self, model, feed, rows, batch_size):
            return Evaluation({"cost": next(scores)}, len(rows), {})

    trained = train_small(tmp_path, task=Named(), evaluate_every=3)
    assert trained.selected_step == (9 if higher else 6)


def test_a_metric_that_validation_does_not_give_is_named_at_the_first_evaluation(tmp_path):
    class Other(Parted):
        def validate(self, model, feed, rows, batch_size):
            return Evaluation({"cost": 1.0}, len(rows), {})

    with pytest.raises(UsageError, match="selects its weights by nats_a_row, which its validation does not give"):
        train_small(tmp_path, task=Other())
