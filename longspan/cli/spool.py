"""Values of thousands of cells, kept on disk until they are shown at the end.

spool = Spool()
spool.append({"task": "listops"})
list(spool)
"""

import io
import json
import tempfile
from collections.abc import Iterator
from typing import Any


class Spool:
    """JSON values in the order they came, in a temporary file without a name; in memory if none can be written."""

    def __init__(self):
        self._count, self._bytes = 0, 0
        try:
            self._file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, it ends with this object
        except OSError:
            self._file = io.BytesIO()

    def append(self, value: Any) -> None:
        line = json.dumps(value).encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError:  # the disk is full
            written = 0
        if written != len(line):
            self._file = io.BytesIO(self._content() + line)
            self._file.seek(0, io.SEEK_END)
        self._count, self._bytes = self._count + 1, self._bytes + len(line)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return map(json.loads, self._content().splitlines())

    def _content(self) -> bytes:
        """All complete lines."""
        self._file.seek(0)
        content = self._file.read(self._bytes)
        self._file.seek(0, io.SEEK_END)
        return content
