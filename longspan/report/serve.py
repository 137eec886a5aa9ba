"""A report at a local address: only for browsers on this machine, and only the files of its folder.

The server listens on loopback only and answers only requests for a name of this machine: otherwise any web page could
read the report through a name that it points here (DNS rebinding). Links out of the folder are not followed.
"""

import contextlib
import functools
import http.server
import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from longspan.core.errors import UsageError

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost", "[::1]")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


@contextlib.contextmanager
def serving(site: Path, port: int = 0) -> Iterator[http.server.ThreadingHTTPServer]:
    """A server of the folder `site`, to be run by `serve_forever`; port 0 takes any free one."""
    try:
        server = _Server((ADDRESS, port), functools.partial(_Handler, directory=str(site.resolve())))
    except OSError as error:
        raise UsageError(
            f"Cannot serve at port {port} of {ADDRESS} ({error.strerror or error}); choose another with --port."
        ) from error
    with server:
        yield server


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.SimpleHTTPRequestHandler):
    timeout = 30  # seconds, for a request that never ends

    def log_message(self, *_: Any) -> None:
        """No log line for a page view."""

    def send_head(self) -> Any:
        if not self._is_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "Only requests to this machine by its own name are answered")
            return None
        if not self._is_inside():
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def _is_for_us(self) -> bool:
        _, port = self.connection.getsockname()
        ours = {*NAMES, *(f"{name}:{port}" for name in NAMES)}
        return [host.lower() in ours for host in self.headers.get_all("Host", [])] == [True]

    def _is_inside(self) -> bool:
        """Whether the path is a file of the folder or a folder with a page, with links resolved."""
        try:
            root, path = Path(self.directory), Path(self.translate_path(self.path)).resolve()
            if path.is_dir():
                path = (path / "index.html").resolve()
            return self.path.startswith("/") and path.is_relative_to(root) and path.is_file()
        except (ValueError, OSError, RuntimeError):  # a name that no file can have, or a loop of links
            return False

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()
