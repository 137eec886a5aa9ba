"""Perplexity of a model, and of the unigram distribution of the training text.

ppl = exp(sum of -ln p(token) / number of tokens)
"""

import math

import numpy as np
from jaxtyping import Float, Integer

from longspan.results.predictions import LARGEST_LOSS


def mean_nats(nats: Float[np.ndarray, " n"], tokens: Integer[np.ndarray, " n"]) -> float:
    """Mean loss per token, from sums over rows of different lengths."""
    return float(nats.astype(np.float64).sum() / tokens.sum())


def perplexity(loss: float) -> float:
    """Perplexity of a mean loss in nats; at most e^345, since larger numbers do not fit on a card."""
    return math.exp(min(loss, LARGEST_LOSS))


def unigram_perplexity(seen: Integer[np.ndarray, " v"], met: Integer[np.ndarray, " v"]) -> float:
    """Unigram perplexity of tokens with the counts `met`, under the training counts `seen` with add-one smoothing."""
    share = (seen.astype(np.float64) + 1) / (float(seen.sum()) + len(seen))
    return perplexity(float(-(met * np.log(share)).sum() / met.sum()))
