"""Messages between a supervisor and its worker: one JSON object per line, through a socket of their own.

What a worker sends is untrusted, since a plug-in may have written it: it is parsed as data, its size is bounded, and
the receiver checks what it says.
"""

import json
import select
import socket
from typing import Any

MAX_BYTES = 64 * 2**20


class Garbled(Exception):
    """What was received is not a message."""


class Closed(Exception):
    """The other end is gone."""


class Channel:
    def __init__(self, end: socket.socket, *, trusted: bool = False):
        self.end, self.trusted = end, trusted
        self._received = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.end.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Closed from error

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message, or None if it does not come in this time."""
        waiting = select.poll()
        waiting.register(self.end, select.POLLIN)
        while (end := self._received.find(b"\n")) < 0:
            if not waiting.poll(None if seconds is None else 1000 * seconds):
                return None
            try:
                came = self.end.recv(2**20)
            except OSError as error:
                raise Closed from error
            if not came:
                raise Closed
            self._received += came
            if len(self._received) > MAX_BYTES:
                raise Garbled(f"more than {MAX_BYTES} bytes without an end")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            message = json.loads(line, parse_constant=float if self.trusted else _refuse)
        except (ValueError, RecursionError) as error:
            raise Garbled("no JSON") from error
        if not isinstance(message, dict):
            raise Garbled("no JSON object")
        return message

    def close(self) -> None:
        self.end.close()


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
