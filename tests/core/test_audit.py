"""Which files a piece of code accesses, as the interpreter's audit events report it."""

import importlib
import json
import socket
import sys
import threading

from longspan.core.audit import reading


def test_a_file_that_is_opened_is_named_once(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0")
    with reading() as read:
        path.read_bytes()
        path.read_bytes()
    assert read == ["weights.bin"]


def test_loading_code_is_not_reading_data(tmp_path, monkeypatch):
    (tmp_path / "freshly_written.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with reading() as read:
        importlib.import_module("freshly_written")
    del sys.modules["freshly_written"]
    assert read == []


def test_what_happens_before_and_after_is_not_seen(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}")
    with reading() as read:
        pass
    json.loads(path.read_text())
    assert read == []


def test_a_call_to_another_machine_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = threading.Thread(target=lambda: server.accept()[0].close())
        answer.start()
        with reading() as read:
            socket.create_connection(server.getsockname()).close()
        answer.join()
    assert len(read) == 1
    assert "127.0.0.1" in read[0]
