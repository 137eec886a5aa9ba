"""A real S3 server on this machine: moto's, in its own process, behind a proxy (the door) that can be shut.

The server keeps objects in memory and loses them when killed. Shutting the door refuses new connections and cuts
open ones, which to a client looks like a server that is killed and restarted with its disk intact.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading

from longspan.core import bucket, mirror
from tests.launchers.waiting import PATIENCE, wait_for

BUCKET = "arena"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def why_not() -> str | None:
    """Why there can be no server here, in a sentence; None if there can."""
    absent = [name for name in ("moto", "flask", "s3fs") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} is not installed; pip install 'longspan[s3]' 'moto[server]'" if absent else None


class Door:
    """Forwards connections to a server; shuts once, after `after` bytes from clients."""

    def __init__(self, server: "Server"):
        self.server, self.after, self.passed = server, None, 0
        self.pairs: list[socket.socket] = []
        self.is_shut = True
        self.port, self.entrance = 0, None
        self.open()

    def open(self) -> None:
        self.entrance = socket.create_server(("127.0.0.1", self.port))
        self.port = self.entrance.getsockname()[1]
        self.is_shut = False
        threading.Thread(target=self._accept, args=(self.entrance,), daemon=True).start()

    def shut(self) -> None:
        """Cut all connections, as if the server were killed."""
        entrance, self.entrance = self.entrance, None
        if entrance is not None:
            with contextlib.suppress(OSError):
                entrance.shutdown(socket.SHUT_RDWR)
            entrance.close()
        for end in self.pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()
        self.is_shut = True

    def _accept(self, entrance: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = entrance.accept()
                server = socket.create_connection(("127.0.0.1", self.server.port))
                self.pairs += [client, server]
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := here.recv(65536):
                if from_client:
                    self.passed += len(piece)
                    if self.after is not None and self.passed > self.after:
                        self.after = None
                        self.shut()
                        break
                there.sendall(piece)
        for end in (here, there):  # wakes the thread of the other direction, which closes the other end
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        here.close()


class Server:
    """moto's process, which can be killed and restarted, then empty."""

    def __init__(self, log):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.log = log
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def make_bucket(self) -> None:
        """Wait until the server is up, then make the bucket, bypassing the door."""
        wait_for(lambda: _is_open(self.port), "the S3 server to come up", self.process)
        code = f"import s3fs; s3fs.S3FileSystem(endpoint_url='http://127.0.0.1:{self.port}').mkdir({BUCKET!r})"
        subprocess.run([sys.executable, "-c", code], env=os.environ | KEYS, check=True, timeout=PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        self.process = self._start()
        self.make_bucket()


@contextlib.contextmanager
def s3_server(log):
    """A door to an S3 server with one bucket, and the environment in which clients find it."""
    server, door = Server(log), None
    try:
        server.make_bucket()
        door = Door(server)
        yield door, os.environ | KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{door.port}"}
    finally:
        if door is not None:
            door.shut()
        server.kill()


def read_here(environment, cache, monkeypatch) -> None:
    """Point this process at the server too, with a fresh mirror of its own."""
    import s3fs

    for name in environment:
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("LONGSPAN_CACHE", str(cache))
    mirror._address.cache_clear()
    bucket._opened.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
