"""Accuracy of a classifier, and of always giving the most frequent answer."""

import numpy as np
from jaxtyping import Integer


def accuracy(prediction: Integer[np.ndarray, " n"], label: Integer[np.ndarray, " n"]) -> float:
    return float((prediction == label).mean())


def majority_rate(label: Integer[np.ndarray, " n"]) -> float:
    """The share of the most frequent class: chance level on this set."""
    return float(np.bincount(label).max() / len(label))
