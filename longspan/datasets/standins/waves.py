"""Synthetic series: each column is the sum of a daily and a weekly wave, a slow drift and noise."""

import numpy as np


def make_waves(rng: np.random.Generator, rows: int, columns: int, per_day: int) -> np.ndarray:
    """Values [rows, columns], `per_day` rows a day."""
    day = np.arange(rows)[:, None] / per_day
    phase, height = rng.uniform(0, 1, (3, columns)), rng.uniform(0.5, 1.5, (3, columns))
    waves = (height[k] * np.sin(2 * np.pi * (day / days + phase[k])) for k, days in enumerate((1, 7, 90)))
    level, spread = rng.uniform(-5, 20, columns), rng.uniform(1, 4, columns)
    return level + spread * (sum(waves) + rng.normal(0, 0.2, (rows, columns)))
