"""The fingerprint says what a number depends on, and nothing about whose machine it was."""

import getpass
import json
import platform
import socket
from pathlib import Path

import torch

from longspan.core import environment


def test_the_fingerprint_names_hardware_and_libraries():
    found = environment.describe()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["cpu_count"] >= 1
    assert {"system", "cpu", "numpy", "einops"} <= found.keys()
    assert json.loads(json.dumps(found)) == found


def test_the_fingerprint_names_no_person_path_or_host():
    text = json.dumps(environment.describe())
    private = {str(Path.home()), str(Path.cwd()), socket.gethostname()}
    assert not [word for word in private if len(word) > 3 and word in text]
    user = getpass.getuser()
    assert len(user) <= 4 or user not in text


def test_an_absent_library_is_none():
    assert environment.installed("a-library-that-is-not-there") is None
    assert environment.installed("torch") is not None


def test_the_code_version_says_which_commit(monkeypatch):
    monkeypatch.delenv("LONGSPAN_COMMIT", raising=False)
    found = environment.code_version()
    assert found.keys() == {"version", "commit", "dirty"}
    if found["commit"] is not None:
        assert set(str(found["commit"])) <= set("0123456789abcdef")
        assert isinstance(found["dirty"], bool)


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("LONGSPAN_COMMIT", raising=False)
    found = environment.code_version()
    assert found["commit"] is None
    assert found["dirty"] is None


def test_a_commit_that_is_said_wins_and_nobody_knows_whether_files_differ(monkeypatch):
    monkeypatch.setenv("LONGSPAN_COMMIT", "0123abc")
    found = environment.code_version()
    assert found["commit"] == "0123abc"
    assert found["dirty"] is None
