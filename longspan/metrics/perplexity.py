"""Perplexity: among how many equally likely tokens a model hesitates, and someone would who only counts tokens.

ppl = exp(sum of -ln p(token) / number of tokens)
"""

import math

import numpy as np
from jaxtyping import Float, Integer


def mean_nats(nats: Float[np.ndarray, " n"], tokens: Integer[np.ndarray, " n"]) -> float:
    """The loss of a token, from sums over rows of unlike lengths; a row weighs as much as it has tokens."""
    return float(nats.astype(np.float64).sum() / tokens.sum())


def perplexity(loss: float) -> float:
    """Of a mean loss in nats; e^700 where that is larger than a number can be."""
    return math.exp(min(loss, 700.0))


def unigram_perplexity(seen: Integer[np.ndarray, " v"], met: Integer[np.ndarray, " v"]) -> float:
    """Of tokens that are met so often, for whoever knows how often training text has each, and one more of each."""
    share = (seen.astype(np.float64) + 1) / (float(seen.sum()) + len(seen))
    return perplexity(float(-(met * np.log(share)).sum() / met.sum()))
