"""How far a point cloud is from the true one: Chamfer distances and the F-score, a number for each cloud.

    CD-l1   1/2 (mean_a |a - B| + mean_b |b - A|)      |a - B| is the distance from a to the nearest point of B
    CD-l2   mean_a |a - B|^2 + mean_b |b - A|^2
    F       2 p r / (p + r)      p, r: shares of predicted and of true points closer than 0.01 to the other cloud

All but F are differentiable, and all are unscaled; tables print Chamfer distances times 1,000. Padding rows can be left
out: `removed` is "zero_rows", or "zero_sums" as in the code that CAB builds on, which takes a point for padding when
its coordinates add up to 0, such as (1, -1, 0). F counts all rows, as in that code. A cloud without points is
infinitely far from one with points.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.point_cloud import nearest_both_ways

Removed = Literal["nothing", "zero_rows", "zero_sums"]
SCALE = 1_000  # of published Chamfer distances
THRESHOLD = 0.01  # of the F-score


def chamfer_l1(
    a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"], *, removed: Removed = "nothing"
) -> Float[Tensor, " b"]:
    """Half the sum of both mean distances; the gradient of a distance of 0 is 0."""
    there, back = (_root(squares) for squares in _both_ways(a, b, removed))
    return (_mean(there, a, removed) + _mean(back, b, removed)) / 2


def chamfer_l2(
    a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"], *, removed: Removed = "nothing"
) -> Float[Tensor, " b"]:
    """The sum of both mean squared distances."""
    there, back = _both_ways(a, b, removed)
    return _mean(there, a, removed) + _mean(back, b, removed)


def f_score(
    prediction: Float[Tensor, "b n 3"], truth: Float[Tensor, "b m 3"], threshold: float = THRESHOLD
) -> Float[Tensor, " b"]:
    """The harmonic mean of precision and recall, 0 where both are."""
    there, back = _both_ways(prediction, truth, "nothing")
    precision, recall = ((_root(squares) < threshold).float().mean(dim=1) for squares in (there, back))
    return torch.where(precision + recall > 0, 2 * precision * recall / (precision + recall), 0.0)


def category_mean(scores: Float[np.ndarray, " clouds"], category: Int[np.ndarray, " clouds"]) -> float:
    """The mean over categories of the mean within each.

    >>> category_mean(np.array([6.0, 8.0, 10.0]), np.array([0, 0, 1]))
    8.5
    """
    if not len(scores):
        raise UsageError("There are no scores to average over categories; score at least one cloud.")
    means = [scores[category == one].mean(dtype=np.float64) for one in np.unique(category)]
    return float(np.mean(means))


def real_points(cloud: Float[Tensor, "b n 3"], removed: Removed) -> Bool[Tensor, "b n"] | None:
    """Which rows count as points; None means all."""
    if removed == "nothing":
        return None
    return (cloud != 0).any(dim=-1) if removed == "zero_rows" else cloud.sum(dim=-1) != 0


def _both_ways(
    a: Float[Tensor, "b n 3"], b: Float[Tensor, "b m 3"], removed: Removed
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b m"]]:
    """Squared distances from each row to the nearest real point of the other cloud, 0 for padding rows."""
    return nearest_both_ways(a, b, a_mask=real_points(a, removed), b_mask=real_points(b, removed))


def _mean(distance: Float[Tensor, "b n"], cloud: Float[Tensor, "b n 3"], removed: Removed) -> Float[Tensor, " b"]:
    real = real_points(cloud, removed)
    if real is None:
        return distance.mean(dim=1)
    return distance.sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _root(squares: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Distances, whose gradient at 0 is not infinite."""
    zero = squares == 0
    return squares.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)
