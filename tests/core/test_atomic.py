"""A file is the old one or the new one, never half of either, and an unwritable path is a clear error."""

import json
import os

import pytest

from longspan.core import atomic
from longspan.core.errors import StorageError


def test_content_arrives_and_folders_are_made(tmp_path):
    path = tmp_path / "deep" / "er" / "card.json"
    atomic.write_json(path, {"b": 1, "a": [1.5, None]})
    assert json.loads(path.read_text()) == {"a": [1.5, None], "b": 1}
    assert path.read_text().index('"a"') < path.read_text().index('"b"')
    atomic.write_text(path, "ümlaut")
    assert path.read_bytes() == "ümlaut".encode()
    assert os.listdir(path.parent) == ["card.json"]


def test_a_crash_in_the_middle_leaves_the_old_content(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("old")

    def write_half():
        with atomic.temporary_beside(path) as temporary:
            temporary.write_text("ne")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_crash_while_renaming_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    path.write_text("old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_value_that_is_not_json_leaves_the_old_content(tmp_path):
    path = tmp_path / "card.json"
    atomic.write_json(path, {"score": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(path, {"score": float("nan")})
    assert json.loads(path.read_text()) == {"score": 1}


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    """A file where a folder should be blocks every user, root included."""
    (tmp_path / "file").write_text("")
    for write in (atomic.write_text, atomic.write_json):
        with pytest.raises(StorageError, match="choose a writable folder"):
            write(tmp_path / "file" / "card.json", "x")


def test_new_files_are_readable_as_others_are(tmp_path):
    atomic.write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    atomic.write_text(tmp_path / ("n" * 255), "x")
    assert (tmp_path / ("n" * 255)).read_text() == "x"


def test_a_folder_is_put_in_the_place_of_another(tmp_path):
    old, new = tmp_path / "data", tmp_path / "fresh"
    for folder, word in ((old, "old"), (new, "new")):
        folder.mkdir()
        (folder / "part").write_text(word)
    atomic.replace_folder(new, old)
    assert (old / "part").read_text() == "new"
    assert os.listdir(tmp_path) == ["data"]


def test_a_folder_is_put_where_there_was_none(tmp_path):
    new = tmp_path / "fresh"
    new.mkdir()
    atomic.replace_folder(new, tmp_path / "made" / "data")
    assert (tmp_path / "made" / "data").is_dir()
    assert not new.exists()
