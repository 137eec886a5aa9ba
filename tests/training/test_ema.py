"""The running mean of the weights: its formula, swapping it into the model, its memory."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan.training.ema import RunningAverage
from tests.training.small import RULES, train_small
from tests.training.test_loop import Killed, assert_same, kill_at


def model_at(value):
    model = nn.Linear(2, 1)
    put(model, value)
    return model


def put(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.998]))
@settings(deadline=None)
def test_the_mean_follows_its_formula(values, decay):
    model = model_at(1.0)
    average, expected = RunningAverage(model, decay), 1.0
    for step, value in enumerate(values, start=1):
        put(model, value)
        average.update(step)
        now = min(decay, step / (step + 10))
        expected = now * expected + (1 - now) * value
    with average.in_place():
        assert model.weight.flatten().tolist() == pytest.approx([expected] * 2, rel=1e-4, abs=1e-4)  # float32
        assert model.bias.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert model.weight.flatten().tolist() == pytest.approx([values[-1]] * 2)


def test_without_decay_it_does_nothing():
    model = model_at(1.0)
    average = RunningAverage(model, 0.0)
    put(model, 3.0)
    average.update(1)
    assert average.mean == []
    with average.in_place():
        assert (model.weight == 3.0).all()


def test_the_model_has_its_own_weights_again_even_after_an_error():
    model = model_at(1.0)
    average = RunningAverage(model, 0.9)
    put(model, 5.0)
    average.update(1)
    with pytest.raises(ZeroDivisionError), average.in_place():
        1 / (model.weight == 5.0).sum().item()
    assert (model.weight == 5.0).all()


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened():
    one, other = model_at(1.0), model_at(7.0)
    unbroken, fresh = RunningAverage(one, 0.9), RunningAverage(other, 0.9)
    for step, value in enumerate((2.0, 3.0, 4.0), start=1):
        put(one, value)
        unbroken.update(step)
    fresh.load([tensor.clone() for tensor in unbroken.mean])
    for model, average in ((one, unbroken), (other, fresh)):
        put(model, 5.0)
        average.update(4)
    assert all(torch.equal(a, b) for a, b in zip(unbroken.mean, fresh.mean, strict=True))


def test_frozen_parameters_are_not_touched():
    model = model_at(1.0)
    model.bias.requires_grad_(False)
    average = RunningAverage(model, 0.5)
    put(model, 2.0)
    average.update(1)
    with average.in_place():
        assert (model.bias == 2.0).all()
        assert (model.weight < 2.0).all()


def test_the_statistics_of_batch_norms_are_averaged_like_weights():
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    average = RunningAverage(model, 0.5)
    model[1].running_mean.fill_(8.0)
    average.update(step=100)
    with average.in_place():
        assert model[1].running_mean.tolist() == [4.0, 4.0]  # half of it is the initial 0
    assert model[1].running_mean.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_a_run_with_batch_norms_that_was_cut_ends_with_the_numbers_of_a_whole_one(average, tmp_path):
    how = {"model": dataclasses.replace(RULES.model, norm="batch", pooling="mean"), "average": average}
    whole = train_small(tmp_path / "whole", **how)
    with pytest.raises(Killed):
        train_small(tmp_path / "cut", **how, watch=kill_at(7), save_every_seconds=-1)
    assert_same(whole, train_small(tmp_path / "cut", **how))
