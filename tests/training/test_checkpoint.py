"""Checkpoints survive whatever happens to the newest one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile, StorageError
from longspan.training import checkpoint


def state(step):
    return {"model": {"w": torch.full((3,), float(step))}, "progress": {"step": step, "curve": [{"step": 1}]}}


def step_of(folder):
    found, damaged = checkpoint.latest(folder)
    return (found and found["progress"]["step"]), [path.name for path, _ in damaged]


def test_what_is_saved_is_what_is_loaded(tmp_path):
    path = checkpoint.save(tmp_path, 7, state(7))
    loaded = checkpoint.load(path)
    assert torch.equal(loaded["model"]["w"], torch.full((3,), 7.0))
    assert loaded["progress"] == {"step": 7, "curve": [{"step": 1}]}


def test_an_empty_or_absent_folder_has_none(tmp_path):
    assert checkpoint.latest(tmp_path) == (None, [])
    assert checkpoint.latest(tmp_path / "absent") == (None, [])


def test_the_newest_two_are_kept(tmp_path):
    for step in (1, 20, 300, 1_000):
        checkpoint.save(tmp_path, step, state(step))
        assert step_of(tmp_path) == (step, [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000000300.pt", "checkpoint-000001000.pt"]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_newest_one_that_was_cut_short_or_altered_is_passed_over(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    checkpoint.save(folder, 1, state(1))
    newest = checkpoint.save(folder, 2, state(2))
    content = bytearray(newest.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    newest.write_bytes(content)
    assert step_of(folder) == (1, [newest.name])
    with pytest.raises(CorruptFile, match="damaged or cut short"):
        checkpoint.load(newest)


def test_garbage_beside_them_harms_nothing(tmp_path):
    checkpoint.save(tmp_path, 5, state(5))
    (tmp_path / "checkpoint-999999999.pt").write_bytes(b"no checkpoint at all")
    (tmp_path / "checkpoint-000000006.pt").write_bytes(b"")
    (tmp_path / ".checkpoint-000000007.pt.x1.part").write_bytes(b"half of one")
    (tmp_path / "notes.txt").write_text("mine")
    assert step_of(tmp_path) == (5, ["checkpoint-999999999.pt", "checkpoint-000000006.pt"])


def test_two_damaged_ones_leave_nothing(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, state(step)).write_bytes(b"gone")
    assert step_of(tmp_path)[0] is None


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        checkpoint.save(tmp_path / "file", 1, state(1))


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def test_loading_never_runs_code(tmp_path, capsys):
    path = checkpoint.save(tmp_path, 1, {"progress": Evil()})
    with pytest.raises(Exception, match=r"[Ww]eights"):
        checkpoint.load(path)
    assert "code was run" not in capsys.readouterr().out
