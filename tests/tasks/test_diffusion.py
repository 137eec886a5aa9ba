"""The diffusion: numbers worked by hand, and pictures that depend only on their own seed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.tasks.diffusion import Batch, Diffusion, Sampler, Schedule, add_noise, normal


def quiet(condition, x, level):
    """A network that predicts no noise."""
    return torch.zeros_like(x)


def mixing(condition, x, level):
    """A network whose predicted noise depends on all its inputs, and on no other picture."""
    return torch.tanh(x + condition.flip(3)) * level[:, None, None, None]


def test_the_schedule_has_the_published_numbers():
    schedule = Diffusion().schedule
    assert schedule.alpha_bars[[0, 999, 1_999]] == pytest.approx([0.999999, 0.08178379, 4.385978e-5], rel=1e-6)
    assert schedule.variances[[0, 1, 1_999]] == pytest.approx([0, 8.571844e-7, 9.999996e-3], rel=1e-6)
    assert schedule.levels[0] == 1
    assert len(schedule) == 2_000


def test_one_step_at_1000_as_worked_by_hand():
    schedule = Diffusion().schedule
    x = torch.full((1, 3, 2, 2), 0.3)
    coefficients = torch.from_numpy(schedule.coefficients()).float()
    batch = Batch(torch.zeros_like(x), torch.tensor([0]), x.clone(), torch.tensor([1_000]), coefficients)
    _, inverse, scale, *_ = coefficients[999]
    assert float(inverse * 0.3 - scale * 0.5) == pytest.approx(-0.626333, abs=1e-6)
    batch.advance(lambda condition, x, level: torch.full_like(x, 0.5))
    expected = 0.298138 + 0.070681 * normal(1_000, torch.tensor([0]), (3, 2, 2))
    torch.testing.assert_close(batch.x, expected, atol=2e-6, rtol=0)
    assert batch.step.tolist() == [999]


def test_the_predicted_picture_is_cut_off_at_the_range_of_colours():
    batch = Batch.begin(torch.zeros(1, 3, 2, 2), torch.tensor([0]), Diffusion().schedule)
    batch.x.fill_(100.0)
    batch.step.fill_(1)
    batch.advance(quiet)  # the last step keeps nothing of x and adds no noise
    torch.testing.assert_close(batch.x, torch.ones(1, 3, 2, 2))


@given(st.integers(2, 300), st.floats(1e-6, 1e-3), st.floats(1e-3, 0.5))
def test_any_schedule_agrees_with_the_plain_formulas(steps, first, last):
    schedule = Diffusion(steps, first, last).schedule
    betas = np.linspace(first, last, steps)
    bars = np.cumprod(1 - betas)
    before = np.concatenate([[1], bars[:-1]])
    np.testing.assert_allclose(schedule.betas, betas, rtol=1e-8)
    np.testing.assert_allclose(schedule.variances, betas * (1 - before) / (1 - bars), rtol=1e-6)
    np.testing.assert_allclose(schedule.toward + schedule.stay * np.sqrt(bars), np.sqrt(before), rtol=1e-6)


@given(st.integers(1, 2_000))
def test_fewer_steps_visit_levels_of_the_whole_schedule_from_the_last_on(count):
    whole, some = Diffusion().schedule, Diffusion(sampled=count).sampling
    assert len(some) == count
    assert set(some.alpha_bars) <= set(whole.alpha_bars)
    assert some.alpha_bars[-1] == whole.alpha_bars[-1]
    assert count == 1 or some.alpha_bars[0] == whole.alpha_bars[0]
    assert some.variances[0] == 0


def test_all_steps_sampled_are_the_schedule_itself():
    np.testing.assert_array_equal(Diffusion(sampled=2_000).sampling.alpha_bars, Diffusion().schedule.alpha_bars)


def test_a_network_that_knows_the_noise_has_no_loss_and_one_that_sees_none_has_its_mean_size():
    noise = normal(7, torch.arange(64), (3, 32, 32))
    assert float((noise - noise).abs().mean()) == 0
    assert float(noise.abs().mean()) == pytest.approx(math.sqrt(2 / math.pi), abs=2e-3)
    assert float(noise.mean()) == pytest.approx(0, abs=5e-3)
    assert float(noise.std()) == pytest.approx(1, abs=5e-3)


def test_noise_is_added_so_that_variances_keep_their_sum():
    picture, noise = torch.full((1, 3, 2, 2), 0.5), torch.full((1, 3, 2, 2), 2.0)
    torch.testing.assert_close(add_noise(picture, noise, torch.tensor([0.6])), torch.full((1, 3, 2, 2), 0.3 + 1.6))


@settings(deadline=None)
@given(st.permutations(range(5)), st.integers(1, 5), st.integers(0, 2_000))
def test_the_noise_of_a_picture_does_not_depend_on_its_batch(order, size, seed):
    whole = normal(seed, torch.arange(5), (3, 3, 5))
    some = torch.tensor(order[:size])
    torch.testing.assert_close(normal(torch.tensor([seed]), some, (3, 3, 5)), whole[some], atol=0, rtol=0)


def test_pictures_and_steps_have_noise_of_their_own():
    found = torch.stack([normal(seed, torch.arange(3), (3, 8, 8)) for seed in range(3)]).flatten(0, 1).flatten(1)
    assert len({tuple(row.tolist()) for row in found}) == 9
    alike = torch.corrcoef(found) - torch.eye(9)
    assert float(alike.abs().max()) < 0.3


def test_a_picture_is_the_same_whatever_batch_it_is_sampled_in():
    condition = torch.rand(5, 3, 8, 8)
    sampler = Sampler(mixing, Diffusion(sampled=6))
    together = sampler(condition, torch.arange(5))
    for size in (1, 2):
        for first in range(0, 5, size):
            part = slice(first, first + size)
            torch.testing.assert_close(sampler(condition[part], torch.arange(5)[part]), together[part])


def test_a_perfect_network_gives_the_picture_back():
    truth = torch.rand(2, 3, 8, 8) * 2 - 1

    def perfect(condition, x, level):
        gamma = level[:, None, None, None]
        return (x - gamma * truth) / (1 - gamma**2).sqrt()

    torch.testing.assert_close(
        Sampler(perfect, Diffusion(sampled=50))(truth, torch.arange(2)), truth, atol=1e-3, rtol=0
    )


@given(st.floats(0.0, 1.0))
def test_noise_follows_from_the_velocity_at_every_level(level):
    diffusion, gamma = Diffusion(predicts="velocity"), torch.tensor([level], dtype=torch.float64)
    picture, noise = (normal(seed, torch.tensor([0]), (3, 4, 4)).double() for seed in (1, 2))
    velocity = diffusion.target(picture, noise, gamma)
    torch.testing.assert_close(diffusion.noise_in(add_noise(picture, noise, gamma), velocity, gamma), noise)


def test_a_network_that_knows_the_velocity_gives_the_picture_back():
    truth, diffusion = torch.rand(2, 3, 8, 8) * 2 - 1, Diffusion(sampled=50, predicts="velocity")

    def perfect(condition, x, level):
        gamma = level[:, None, None, None]
        return diffusion.target(truth, (x - gamma * truth) / (1 - gamma**2).sqrt(), level)

    found = Sampler(perfect, diffusion)(truth, torch.arange(2))
    torch.testing.assert_close(found, truth, atol=1e-3, rtol=0)  # single precision at the last levels


def test_an_error_of_the_velocity_is_no_larger_in_the_first_picture_that_sampling_makes():
    """With noise prediction the error is 151 times as large, and clipped."""
    truth = torch.zeros(1, 3, 4, 4)
    for predicts, least, most in (("noise", 0.99, 1.0), ("velocity", 0.0, 0.0101)):
        diffusion = Diffusion(sampled=1, predicts=predicts)

        def wrong(condition, x, level, diffusion=diffusion):
            gamma = level[:, None, None, None]
            return diffusion.target(truth, (x - gamma * truth) / (1 - gamma**2).sqrt(), level) + 0.01

        found = Sampler(wrong, diffusion)(truth, torch.arange(1))
        assert least <= float(found.abs().mean()) <= most


def test_sampling_leaves_its_inputs_alone():
    condition, numbers = torch.rand(2, 3, 4, 4), torch.arange(2)
    kept = condition.clone()
    Sampler(mixing, Diffusion(sampled=3))(condition, numbers)
    torch.testing.assert_close(condition, kept, atol=0, rtol=0)
    assert numbers.tolist() == [0, 1]


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"first_beta": 0.0}, {"last_beta": 1.0}, {"first_beta": 0.5}, {"sampled": 0}]
)
def test_settings_that_make_no_diffusion_are_refused(wrong):
    with pytest.raises(UsageError):
        Diffusion(**wrong)


def test_the_coefficients_are_finite_at_every_step():
    assert np.isfinite(Diffusion().schedule.coefficients()).all()
    assert np.isfinite(Schedule(np.array([0.5])).coefficients()).all()
