"""Distance of generated from true speech: mel-cepstral (MCD) and mel-spectral (MSD) distortion along the best warping.

Both compare the frames of two waves by the root of the mean squared difference, align them by dynamic time warping and
add up the distances on the path. MCD takes 13 cepstral coefficients, the first included, MSD 80 log mel powers. There
is no factor 10 sqrt(2) / ln 10: these are not decibels. Over a corpus the sum of costs is divided by a sum of frames:
those of the generated speech in CAB's test, those of the reference in fairseq's validation.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.kernels.precision import at_least_single
from longspan.kernels.spectrogram import cepstrum, frame_step, log_mel_power

CELLS = 2**26  # of the skewed matrices in memory at a time


@dataclass(frozen=True)
class Distortion:
    """One number per clip: the cost of each path, its steps, and the frames on either side."""

    mcd: Float[Tensor, " b"]
    msd: Float[Tensor, " b"]
    mcd_steps: Int[Tensor, " b"]
    msd_steps: Int[Tensor, " b"]
    reference_frames: Int[Tensor, " b"]
    made_frames: Int[Tensor, " b"]


def mcd_msd(
    reference: Float[Tensor, "b n"],
    made: Float[Tensor, "b m"],
    *,
    reference_lengths: Int[Tensor, " b"] | None = None,
    made_lengths: Int[Tensor, " b"] | None = None,
    rate: int = 22_050,
) -> Distortion:
    """The distortion of each clip; the lengths are in samples, samples beyond them are padding."""
    logs, frames = [], []
    for wave, given in (reference, reference_lengths), (made, made_lengths):
        samples = torch.full((len(wave),), wave.shape[1]) if given is None else given
        logs.append(log_mel_power(wave, given, rate=rate))
        frames.append(1 + samples.to(wave.device) // frame_step(rate))
    spectral = _warped(*logs, *frames)
    cepstral = _warped(cepstrum(logs[0]), cepstrum(logs[1]), *frames)
    return Distortion(cepstral[0], spectral[0], cepstral[1], spectral[1], *frames)


def over_corpus(costs: Shaped[np.ndarray, " clips"], frames: Shaped[np.ndarray, " clips"]) -> float:
    """The score of a corpus: the sum of its costs per frame, so that a long clip weighs more than a short one.

    >>> over_corpus(np.array([1.0, 2.0]), np.array([3, 2]))
    0.6
    """
    return float(costs.sum(dtype=np.float64) / frames.sum(dtype=np.float64))


def frame_distances(x: Float[Tensor, "b n c"], y: Float[Tensor, "b m c"]) -> Float[Tensor, "b n m"]:
    """sqrt(mean (x_i - y_j)^2), from differences: with products, equal frames would not be at distance 0."""
    x, y = at_least_single(x), at_least_single(y)
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") / x.shape[-1] ** 0.5


def dtw(
    distance: Float[Tensor, "b n m"],
    rows: Int[Tensor, " b"] | None = None,
    columns: Int[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
    """The cost of the cheapest path from the first cell to the last, both included, and its number of cells.

    A move advances one row, one column or both. On ties the path comes from the left, then from the diagonal, then from
    above. All cells of an anti-diagonal are computed at once, for all clips; `rows` and `columns` are the sizes of each
    clip's matrix.

    >>> dtw(torch.tensor([[[1.0, 1.0], [1.0, 1.0]]]))
    (tensor([2.]), tensor([2]))
    """
    b, n, m = distance.shape
    last = torch.full((b,), n - 1, device=distance.device) if rows is None else rows.to(distance.device) - 1
    ends = last + (m if columns is None else columns.to(distance.device)) - 1  # the anti-diagonal of the last cell
    # cell (i, j) moves to (i, i + j): column k of the skewed matrix is anti-diagonal k, infinite outside of the matrix
    skewed = F.pad(distance, (0, n), value=torch.inf).flatten(1)[:, : n * (m + n - 1)]
    skewed = skewed.reshape(b, n, m + n - 1).permute(2, 0, 1).contiguous()
    nowhere = distance.new_full((b, n + 1), torch.inf)  # with a row above the first, so that a shift is a view
    before, path_before = nowhere, torch.zeros_like(nowhere)
    now, path = nowhere.clone(), torch.ones_like(nowhere)
    now[:, 1] = skewed[0, :, 0]
    costs, paths = [now[:, 1:].gather(1, last[:, None])], [path[:, 1:].gather(1, last[:, None])]
    for cells in skewed[1:]:
        left, diagonal, above = now[:, 1:], before[:, :-1], now[:, :-1]
        best, steps = _smaller(left, path[:, 1:], diagonal, path_before[:, :-1])
        best, steps = _smaller(best, steps, above, path[:, :-1])
        before, path_before = now, path
        now, path = F.pad(best + cells, (1, 0), value=torch.inf), F.pad(steps + 1, (1, 0))
        costs.append(now[:, 1:].gather(1, last[:, None]))
        paths.append(path[:, 1:].gather(1, last[:, None]))
    cost, steps = (torch.cat(each, dim=1).gather(1, ends[:, None])[:, 0] for each in (costs, paths))
    return cost, steps.long()


def _smaller(
    first: Float[Tensor, "b n"],
    path: Float[Tensor, "b n"],
    other: Float[Tensor, "b n"],
    other_path: Float[Tensor, "b n"],
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    wins: Bool[Tensor, "b n"] = other < first
    return torch.where(wins, other, first), torch.where(wins, other_path, path)


def _warped(
    x: Float[Tensor, "b n c"], y: Float[Tensor, "b m c"], rows: Int[Tensor, " b"], columns: Int[Tensor, " b"]
) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Cost and steps of each clip, a few at a time as the matrices are large."""
    few = max(1, CELLS // (x.shape[1] * (x.shape[1] + y.shape[1])))
    parts = [
        dtw(frame_distances(x[i : i + few], y[i : i + few]), rows[i : i + few], columns[i : i + few])
        for i in range(0, len(x), few)
    ]
    costs, steps = zip(*parts, strict=True)
    return torch.cat(costs), torch.cat(steps)
