"""Accuracy and the majority-class rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.metrics.classification import accuracy, majority_rate

labels = st.lists(st.integers(0, 9), min_size=1, max_size=50).map(np.array)


@given(labels)
def test_the_majority_rate_is_the_best_that_one_answer_can_do(label):
    best = max(accuracy(np.full_like(label, answer), label) for answer in range(10))
    assert majority_rate(label) == best


@given(labels, st.data())
def test_accuracy_counts_what_is_right(label, data):
    wrong = data.draw(st.sets(st.integers(0, len(label) - 1)))
    prediction = np.array([(x + 1) % 10 if i in wrong else x for i, x in enumerate(label)])
    assert accuracy(prediction, label) * len(label) == pytest.approx(len(label) - len(wrong))


def test_both_are_plain_numbers():
    assert type(accuracy(np.array([1]), np.array([1]))) is float
    assert type(majority_rate(np.array([1, 1, 2]))) is float
