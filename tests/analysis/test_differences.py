"""Two mechanisms differ where a paired interval over the same test examples excludes 0."""

import numpy as np
import pytest

from longspan import analysis
from longspan.analysis import gather
from longspan.analysis.differences import paired_interval
from longspan.core.errors import DataMissing
from longspan.results.store import Store
from tests.results.factory import make_card, write_predictions


def add(folder, mechanism, correct, count=2000, seed=0, **fields):
    path = write_predictions(folder / "predictions.npz", correct, count)
    card = make_card(mechanism, accuracy=correct / count, count=count, seed=seed, tier="full", **fields)
    Store(folder / "cards").add(card, files={"predictions": path})


def rows(folder):
    finding = analysis.answer("differences", gather([folder / "cards"]))
    names = [column.title for column in finding.columns]
    return {row[1]: dict(zip(names, row, strict=True)) for row in finding.rows}, finding.notes


def test_pairing_sees_what_independent_samples_would_not(tmp_path):
    """Forty more correct of the same 2,000: an error of three points for each alone, half a point when paired."""
    add(tmp_path, "softmax", 1000)
    add(tmp_path, "linear", 1040)
    add(tmp_path, "local", 1001)
    found, notes = rows(tmp_path)
    assert (found["Linear"]["Difference"], found["Linear"]["Differs"]) == ("+2.00", True)
    assert (found["Local"]["Difference"], found["Local"]["Differs"]) == ("+0.05", False)
    assert found["Linear"]["Seeds"] == "1 / 1"
    assert any("not the luck of training" in note for note in notes)


def test_the_luck_of_seeds_is_in_the_interval(tmp_path):
    for seed, (mine, theirs) in enumerate([(1000, 1100), (1200, 1000), (1040, 1060)]):
        add(tmp_path, "softmax", theirs, seed=seed)
        add(tmp_path, "linear", mine, seed=seed)
    found, notes = rows(tmp_path)
    assert (found["Linear"]["Seeds"], found["Linear"]["Differs"]) == ("3 / 3", False)
    assert not any("luck of training" in note for note in notes)


def test_the_interval_is_that_of_the_standard_error_and_the_same_at_every_call():
    random = np.random.default_rng(1)
    one, other = random.random((1, 4000)) < 0.4, random.random((1, 4000)) < 0.38
    low, high = paired_interval(one.astype(float), other.astype(float))
    assert (low, high) == paired_interval(one.astype(float), other.astype(float))
    error = (one.astype(float) - other.astype(float)).std() / 4000**0.5
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.08)


def test_without_softmax_overrides_and_damaged_files_there_is_no_answer(tmp_path):
    add(tmp_path, "linear", 1000)
    add(tmp_path, "local", 1000)
    with pytest.raises(DataMissing, match="run both on one task"):
        rows(tmp_path)
    add(tmp_path, "softmax", 1000, overrides={"recipe.steps": 3})
    with pytest.raises(DataMissing):
        rows(tmp_path)
    add(tmp_path, "softmax", 1000, seed=1)
    assert set(rows(tmp_path)[0]) == {"Linear", "Local"}
    (path,) = (tmp_path / "cards").rglob("listops-local*.npz")
    path.write_bytes(b"PK nonsense")
    found, notes = rows(tmp_path)
    assert set(found) == {"Linear"}
    assert any("was changed after the run" in note for note in notes)


def test_other_test_examples_are_not_paired(tmp_path):
    add(tmp_path, "softmax", 1000)
    add(tmp_path, "linear", 1000)
    add(tmp_path, "local", 500, count=1000)
    found, notes = rows(tmp_path)
    assert set(found) == {"Linear"}
    assert "local and softmax have other test examples on listops." in notes


def test_windows_of_a_series_are_drawn_in_blocks(tmp_path):
    """Errors that stay the same over a horizon: as if there were five windows and not a hundred."""
    task, lead = "forecasting_etth1", np.repeat([0.3, 0.3, 0.3, -0.2, -0.2], 20)
    for name, mse in (("softmax", np.ones(100)), ("linear", 1 - lead)):
        settings = make_card()["settings"] | {"data": {"horizon": 20}}
        score = {"name": "mse", "split": "test", "value": float(mse.mean()), "count": 100, "unit": "plain"}
        fields = {"score": score | {"higher_is_better": False, "chance": None}, "settings": settings}
        np.savez_compressed(tmp_path / "predictions.npz", mse=mse)
        card = make_card(name, task=task, tier="full", **fields)
        Store(tmp_path / "cards").add(card, files={"predictions": tmp_path / "predictions.npz"})
    found, notes = rows(tmp_path)
    independent = paired_interval(1 - lead[None], np.ones((1, 100)))
    assert independent[1] < 0
    assert (found["Linear"]["Difference"], found["Linear"]["Differs"]) == ("-0.1", False)
    assert any("blocks of 20 neighbours" in note and "5 of them" in note for note in notes)
