"""A real S3 server on this machine: moto's, in a process of its own, behind a door that can be shut.

The server keeps objects in memory, so that it is not killed; shutting the door refuses new connections and cuts those
that are open, which is all that a client can see of a server that is killed and started again.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time

BUCKET = "arena"


def why_not() -> str | None:
    """Why there can be no server here, in a sentence; None where there can."""
    absent = [name for name in ("moto", "flask", "s3fs") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} is not installed; pip install 'longspan[s3]' 'moto[server]'" if absent else None


class Door:
    """Passes connections on to a server; `after` bytes from clients it shuts, once."""

    def __init__(self, port: int):
        self.server, self.after, self.passed = port, None, 0
        self.pairs: list[socket.socket] = []
        self.port, self.entrance = 0, None
        self.open()

    def open(self) -> None:
        self.entrance = socket.create_server(("127.0.0.1", self.port))
        self.port = self.entrance.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.entrance,), daemon=True).start()

    def shut(self) -> None:
        """As if the server were killed."""
        entrance, self.entrance = self.entrance, None
        if entrance is not None:
            with contextlib.suppress(OSError):
                entrance.shutdown(socket.SHUT_RDWR)
            entrance.close()
        for end in self.pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.pairs.clear()

    def _accept(self, entrance: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = entrance.accept()
                server = socket.create_connection(("127.0.0.1", self.server))
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


@contextlib.contextmanager
def s3_server(log):
    """A door to an S3 server with one bucket, and the environment in which clients find it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    door = None
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None, "the S3 server did not start"
            assert time.monotonic() < deadline, "the S3 server did not come up"
            time.sleep(0.2)
        door = Door(port)
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        environment = os.environ | keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{door.port}"}
        make = "import s3fs; s3fs.S3FileSystem().mkdir('arena')"
        subprocess.run([sys.executable, "-c", make], env=environment, check=True, timeout=120)
        yield door, environment
    finally:
        if door is not None:
            door.shut()
        server.terminate()
        server.wait()
