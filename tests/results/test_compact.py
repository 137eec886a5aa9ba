"""Predictions are stored compactly and without loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.results import predictions
from longspan.results.predictions import by_example, compact, score_of
from tests.results.factory import write_predictions


def saved(path, found):
    np.savez_compressed(path, allow_pickle=False, **found)
    return path


@given(
    answers=st.lists(st.tuples(st.integers(0, 2**40), st.integers(-3, 300), st.floats(-1, 1)), min_size=1, max_size=50),
    seed=st.integers(0, 99),
)
def test_the_compact_form_has_the_same_rows_in_order(answers, seed):
    label, prediction, loss = (np.array(column) for column in zip(*answers, strict=True))
    row = np.random.default_rng(seed).permutation(len(answers))
    found = compact({"row": row, "label": label[row], "prediction": prediction[row], "loss": loss[row]})
    assert set(found) == {"label", "prediction", "loss"}
    assert np.array_equal(found["label"].astype("int64"), label)
    assert np.array_equal(found["prediction"].astype("int64"), prediction)
    assert np.array_equal(found["loss"], loss)
    assert found["prediction"].dtype.itemsize <= 2


@pytest.mark.parametrize(
    "found",
    [
        {"row": np.array([3, 1]), "mse": np.ones(2)},  # not all rows
        {"row": np.array([1, 0]), "mse": np.ones(3)},  # arrays of different lengths
        {"row": np.array([0.0, 1.0]), "mse": np.ones(2)},
        {"row": np.array([0, 0]), "mse": np.ones(2)},
        {"nats": np.ones(2)},
    ],
)
def test_what_is_no_order_of_all_rows_stays_as_it_is(found):
    kept = compact(found)
    assert set(kept) == set(found)
    assert all(np.array_equal(kept[name], found[name]) for name in found)


def test_the_score_is_that_of_the_wide_form_in_a_fraction_of_the_bytes(tmp_path):
    random = np.random.default_rng(0)
    label, row = np.repeat([0, 1], 5000), random.permutation(10_000)
    prediction = random.integers(0, 2, 10_000)
    wide = {"row": row, "label": label[row], "prediction": prediction[row]}
    before, after = saved(tmp_path / "wide.npz", wide), saved(tmp_path / "small.npz", compact(wide))
    assert score_of(before, "accuracy") == score_of(after, "accuracy")
    assert np.array_equal(by_example(before, "accuracy"), by_example(after, "accuracy"))
    assert after.stat().st_size < before.stat().st_size / 5
    labels = [predictions.labels_digest(predictions.labels_and_answers(path)[0]) for path in (before, after)]
    assert labels[0] == labels[1]


def test_examples_have_a_share_of_plain_means_alone(tmp_path):
    assert by_example(write_predictions(tmp_path / "a.npz", 3, 4), "accuracy").tolist() == [1, 1, 1, 0]
    path = saved(tmp_path / "b.npz", {"mse": np.array([1.0, 2.0]), "nats": np.ones(2), "tokens": np.ones(2, int)})
    assert by_example(path, "mse").tolist() == [1.0, 2.0]
    assert by_example(path, "perplexity") is None
    grouped = saved(tmp_path / "c.npz", {"cd": np.ones(2), "category": np.array(["a", "b"])})
    assert by_example(grouped, "cd") is None
