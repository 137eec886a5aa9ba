"""Perplexity by hand: a fair coin has perplexity 2, and a long row weighs more than a short one."""

import math

import numpy as np
import pytest

from longspan.metrics.perplexity import mean_nats, perplexity, unigram_perplexity


def test_a_choice_among_equals_has_the_perplexity_of_their_number():
    assert perplexity(math.log(48_528)) == pytest.approx(48_528)
    assert perplexity(0.0) == 1.0
    assert math.isfinite(perplexity(1e9))


def test_rows_weigh_as_much_as_they_have_tokens():
    """Three tokens at ln 2 and one at ln 32: (3 ln 2 + 5 ln 2) / 4 = 2 ln 2, and not the mean of the rows' means."""
    nats, tokens = np.array([3 * math.log(2), math.log(32)]), np.array([3, 1])
    assert perplexity(mean_nats(nats, tokens)) == pytest.approx(4.0)


def test_unigrams_by_hand():
    """Counts 3, 0, 1 of 4, plus one each: 4/7, 1/7, 2/7. Each occurs once in the test: (4 * 1 * 2 / 343) ^ (-1/3)."""
    found = unigram_perplexity(np.array([3, 0, 1]), np.array([1, 1, 1]))
    assert found == pytest.approx((8 / 343) ** (-1 / 3))


def test_the_best_unigrams_are_those_of_the_text_itself():
    seen = np.array([600, 300, 100])
    entropy = -sum(p * math.log(p) for p in (0.6, 0.3, 0.1))
    assert unigram_perplexity(seen * 10_000, seen) == pytest.approx(math.exp(entropy), rel=1e-5)
    assert unigram_perplexity(np.array([100, 300, 600]), seen) > math.exp(entropy)
