"""A run that never starts to learn gives up at a given step and says so on its card; off by default."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.runs import Cell, run
from longspan.tasks.base import Protocol, Recipe
from longspan.training.progress import Progress
from longspan.training.selection import Selection
from tests.training.small import RULES, TASK, train_small

SMALL = {"data.train": 64, "data.valid": 20, "data.test": 20, "data.longer_than": 5, "data.shorter_than": 20}
SMALL |= {"model.dim": 8, "model.layers": 1, "model.mlp": 8, "recipe.batch_size": 4, "recipe.warmup": 1}
SMALL |= {"recipe.steps": 9, "recipe.evaluate_every": 1}


def selection(higher=True, **settings):
    meta = dataclasses.replace(TASK.meta, higher_is_better=higher)
    return Selection(meta, dataclasses.replace(RULES.recipe, steps=100, **settings))


def after(scores):
    """The state after an evaluation at every tenth step."""
    curve = [{"step": 10 * (i + 1), "valid_accuracy": score} for i, score in enumerate(scores)]
    return Progress(step=10 * len(curve), curve=curve)


@given(st.lists(st.sampled_from([0.5, 0.53, 0.6]), min_size=1, max_size=9), st.integers(1, 95), st.booleans())
def test_it_gives_up_where_no_two_scores_in_a_row_were_reached_in_time(scores, step, higher):
    chosen = selection(higher, give_up_at=(step, 0.53))
    good = [score >= 0.53 if higher else score <= 0.53 for score in scores]
    judged = max(2, -(-step // 10))  # the first evaluation at that step or later, but one is not two in a row
    in_time = good[:judged]
    started = any(in_time[i] and in_time[i + 1] for i in range(len(in_time) - 1))
    due = len(scores) >= judged
    assert chosen.gave_up(after(scores)) == (due and not started)
    assert chosen.is_over(after(scores)) == (due and not started)


def test_a_run_whose_first_evaluation_is_late_is_judged_by_its_second():
    chosen = selection(give_up_at=(3, 0.53))
    assert [chosen.gave_up(after(scores)) for scores in ([0.9], [0.9, 0.9], [0.9, 0.5])] == [False, False, True]


def test_by_default_nobody_gives_up():
    assert RULES.recipe.give_up_at is None
    assert not selection().is_over(after([0.1] * 9))


def test_a_run_that_began_to_learn_in_time_goes_on_even_if_it_falls_back():
    assert not selection(give_up_at=(30, 0.53)).is_over(after([0.6, 0.6, 0.5, 0.5, 0.5]))


def test_training_ends_there_and_does_not_go_on_when_it_is_called_again(tmp_path):
    how = {"evaluate_every": 3, "give_up_at": (5, 1.1)}
    trained = train_small(tmp_path, **how)
    assert (trained.progress.step, trained.test.count) == (6, 7)
    assert train_small(tmp_path, **how).progress.step == 6


def test_a_tenth_of_a_recipe_gives_up_at_a_tenth_of_the_step():
    recipe = Recipe(steps=60_000, batch_size=4, learning_rate=0.1, warmup=0, give_up_at=(30_000, 0.53))
    assert Protocol(None, None, recipe).lite().recipe.give_up_at == (3_000, 0.53)


def test_the_card_says_when_it_gave_up_and_only_then(tmp_path):
    how = {"out": tmp_path, "data": tmp_path / "data", "device": "cpu", "weights": False, "progress": False}
    gone = run(Cell("listops", "softmax", overrides=SMALL | {"recipe.give_up_at": (4, 1.1)}), **how)
    assert (gone["status"], gone["gave_up_at"], gone["curve"][-1]["step"]) == ("ok", 4, 4)
    assert gone["settings"]["recipe"]["give_up_at"] == [4, 1.1]
    stayed = run(Cell("listops", "softmax", overrides=SMALL | {"recipe.give_up_at": (4, 0.0)}), **how)
    whole = run(Cell("listops", "softmax", overrides=SMALL), **how)
    assert "gave_up_at" not in stayed
    assert (stayed["curve"], stayed["score"]) == (whole["curve"], whole["score"])


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"give_up_at": (0, 0.5)}, "begins with a step from 1"),
        ({"give_up_at": (5, 0.5), "selection": "mean_of_last"}, "whose end is known"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        Recipe(steps=10, batch_size=4, learning_rate=0.1, warmup=0, **settings)
