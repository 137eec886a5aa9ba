"""TensorBoard events are written beside the run, and a resumed run does not repeat points."""

import pytest

from longspan.training.display import Logs
from longspan.training.progress import Progress

pytest.importorskip("tensorboard", reason="tensorboard is not installed")


def test_events_hold_every_point_of_the_curve(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curve = [{"step": step, "train_loss": 1 / step, "valid_accuracy": step / 8} for step in (1, 2, 4)]
    for until in (2, 3):
        logs = Logs(tmp_path)
        logs.update(Progress(curve=curve[:until]))
        logs.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("valid_accuracy")]
    assert found == [(1, 0.125), (2, 0.25), (4, 0.5)]
