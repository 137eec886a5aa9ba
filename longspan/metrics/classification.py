"""How often a classifier is right, and how often someone would be who always gives the commonest answer."""

import numpy as np
from jaxtyping import Integer


def accuracy(prediction: Integer[np.ndarray, " n"], label: Integer[np.ndarray, " n"]) -> float:
    return float((prediction == label).mean())


def majority_rate(label: Integer[np.ndarray, " n"]) -> float:
    """The share of the commonest class: what chance means on this very set."""
    return float(np.bincount(label).max() / len(label))
