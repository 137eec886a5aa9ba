"""Log files say what the learning curve says, after a resumption too."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.training.display import Logs, progress_bar
from longspan.training.progress import Progress

numbers = st.floats(allow_nan=False, allow_infinity=False)
curves = st.lists(st.fixed_dictionaries({"train_loss": numbers, "valid_accuracy": numbers}), min_size=1, max_size=6)


def numbered(points):
    return [{"step": step, **point} for step, point in enumerate(points, start=1)]


def logged(folder):
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(autouse=True)
def without_tensorboard(monkeypatch):
    """Importing it takes seconds; one test below does."""
    monkeypatch.setattr(Logs, "_to_tensorboard", lambda *_: None)


@given(curves, st.integers(0, 5))
@settings(deadline=None, max_examples=30)
def test_the_csv_equals_the_curve_to_the_last_bit_also_after_a_resumption(tmp_path_factory, points, cut):
    folder, curve = tmp_path_factory.mktemp("run"), numbered(points)
    for until in (min(cut, len(curve)), len(curve)):  # two processes, one after the other
        logs = Logs(folder)
        for length in range(until + 1):
            logs.update(Progress(step=length, curve=curve[:length]))
        logs.close()
    assert logged(folder) == curve


def test_nothing_is_written_before_the_first_evaluation(tmp_path):
    Logs(tmp_path).update(Progress(step=3))
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_shown_on_a_terminal_only(capsys):
    with progress_bar("listops softmax", 10, "accuracy") as watch:
        watch(Progress(step=2), 10)  # elsewhere one line a minute is enough
    assert capsys.readouterr().err == ""


def test_a_bar_shows_loss_score_and_speed(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    point = {"step": 5, "train_loss": 1.25, "valid_accuracy": 0.5}
    with progress_bar("listops softmax", 10, "accuracy") as watch:
        watch(Progress(step=2), 10)
        watch(Progress(step=5, curve=[point]), 10)
    shown = capsys.readouterr().err
    for words in ("listops softmax", "loss 1.250", "valid accuracy 0.500", "steps/s", "5/10"):
        assert words in shown
