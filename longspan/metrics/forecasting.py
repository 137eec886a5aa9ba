"""Forecasting errors: squared and absolute errors of standardised values, averaged over all windows.

All windows have equally many values, so that the mean of the windows' means is the mean of all values.
"""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor


def window_errors(
    forecast: Float[Tensor, "b t v"], truth: Float[Tensor, "b t v"]
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Mean squared and mean absolute error of each window, on the device, as forecasts are too many to copy."""
    difference = forecast.float() - truth.float()
    return difference.square().mean(dim=(1, 2)), difference.abs().mean(dim=(1, 2))


def over_windows(errors: Float[np.ndarray, " windows"]) -> float:
    """The error of a whole split."""
    return float(errors.astype(np.float64).mean())


def error_of_the_mean(values: Float[np.ndarray, "rows v"], first: Int[np.ndarray, " windows"], horizon: int) -> float:
    """The mean squared error of a forecast of 0, the mean of the training rows, for the rows from each `first` on."""
    squares = np.square(values, dtype=np.float64).mean(axis=1)
    sums = np.concatenate([[0.0], np.cumsum(squares)])
    return float((sums[first + horizon] - sums[first]).mean() / horizon)
