"""Pitch and energy of a clip, and their means over phones as FastSpeech 2 learns them.

Pitch is the F0 of WORLD (`dio`, then `stonemask`) with a value for each mel frame, unvoiced ones 0. Unvoiced frames are
interpolated, the ends held at the first and last voiced value; then the mean over each phone, and log(x + 1). Energy is
the norm of the magnitudes of each frame, averaged in the same way.
"""

import warnings
from importlib import import_module
from typing import Any

import numpy as np

from longspan.core.errors import UsageError


def track_pitch(wave: np.ndarray, rate: int, hop: int) -> np.ndarray:
    """F0 in Hz for each of 1 + samples // hop frames, 0 where there is no voice."""
    pyworld = needed("pyworld")
    wave = wave.astype(np.float64)
    f0, times = pyworld.dio(wave, rate, frame_period=1_000 * hop / rate)
    f0 = pyworld.stonemask(wave, f0, times, rate)
    return fit(f0, 1 + len(wave) // hop).astype(np.float32)


def is_voiced(pitch: np.ndarray) -> bool:
    """Whether a contour has the two voiced frames that interpolation needs."""
    return int(np.count_nonzero(pitch)) >= 2


def interpolate(pitch: np.ndarray) -> np.ndarray:
    """A contour without gaps.

    >>> interpolate(np.array([0.0, 100, 0, 200, 0])).tolist()
    [100.0, 100.0, 150.0, 200.0, 200.0]
    """
    voiced = np.flatnonzero(pitch)
    return np.interp(np.arange(len(pitch)), voiced, pitch[voiced])


def phone_means(values: np.ndarray, durations: np.ndarray) -> np.ndarray:
    """log(mean + 1) of the frames of every phone; a phone without frames has 0."""
    edges = np.concatenate([[0], np.cumsum(durations, dtype=np.int64)])
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])[edges]
    return np.log1p(np.diff(sums) / np.maximum(durations, 1)).astype(np.float32)


def fit(values: np.ndarray, frames: int) -> np.ndarray:
    """Cut or padded with zeros to `frames` frames."""
    padding = [(0, max(0, frames - len(values))), *[(0, 0)] * (values.ndim - 1)]
    return np.pad(values[:frames], padding)


def needed(package: str) -> Any:
    """A package of the extra `speech`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from pyworld, about how it finds its version
            return import_module(package)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Preparing speech needs the package {error.name!r}, which is not installed; run: "
            "pip install longspan[speech]"
        ) from error
