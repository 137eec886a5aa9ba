"""Forecast errors: hand-checked numbers, and the same mean however the windows are batched."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.metrics.forecasting import error_of_the_mean, over_windows, window_errors


def test_errors_by_hand():
    forecast = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    truth = torch.tensor([[[1.0, 0.0], [0.0, 4.0]], [[0.0, -2.0], [4.0, 0.0]]])
    squared, absolute = window_errors(forecast, truth)
    assert squared.tolist() == [(0 + 4 + 9 + 0) / 4, (0 + 4 + 16 + 0) / 4]
    assert absolute.tolist() == [(0 + 2 + 3 + 0) / 4, (0 + 2 + 4 + 0) / 4]
    assert over_windows(squared.numpy()) == 33 / 8
    assert over_windows(absolute.numpy()) == 11 / 8


@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 1_000))
@settings(deadline=None)
def test_the_mean_over_windows_is_the_mean_over_all_values(windows, size, seed):
    rng = np.random.default_rng(seed)
    forecast, truth = (torch.from_numpy(rng.normal(size=(windows, 5, 3)).astype(np.float32)) for _ in range(2))
    parts = [window_errors(f, t) for f, t in zip(forecast.split(size), truth.split(size), strict=True)]
    squared, absolute = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    difference = (forecast - truth).double()
    assert over_windows(squared) == pytest.approx(difference.square().mean().item(), rel=1e-5)
    assert over_windows(absolute) == pytest.approx(difference.abs().mean().item(), rel=1e-5)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 1_000))
def test_chance_is_the_error_of_forecasting_zero(windows, horizon, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(windows + horizon, 2)).astype(np.float32)
    first = rng.integers(0, windows + 1, size=windows)
    expected = np.mean([np.square(values[f : f + horizon], dtype=np.float64).mean() for f in first])
    assert error_of_the_mean(values, first, horizon) == pytest.approx(expected, rel=1e-9)
