"""A web server on this machine that serves what a test gives it and misbehaves on request."""

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Page:
    """One file on the server, and its faults.

    `drops`: body bytes after which successive GET responses break off; `status`: codes sent instead of a file.
    """

    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = '"one"'
    ranges: bool = True
    length: bool = True  # whether Content-Length is sent
    head: bool = True
    status: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)


@dataclass
class Server:
    url: str
    pages: dict[str, Page]
    seen: list[tuple[str, str, str | None]]  # method, path, Range

    def asked(self, method: str = "GET") -> list[str | None]:
        """The Range headers of the requests so far."""
        return [asked for verb, _, asked in self.seen if verb == method]


@contextlib.contextmanager
def serving(pages: dict[str, Page]) -> Iterator[Server]:
    seen: list[tuple[str, str, str | None]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            """Log nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            asked = self.headers.get("Range")
            seen.append((self.command, self.path, asked))
            page = pages.get(self.path.lstrip("/"))
            if page is None or (page.status and body) or (not body and not page.head):
                code = 404 if page is None else 405 if not body else page.status.pop(0)
                self.reply(code, {}, b"no")
                return
            start, size = 0, len(page.content)
            same = self.headers.get("If-Range") in (None, page.etag)
            found = re.fullmatch(r"bytes=(\d+)-", asked or "")
            if found and page.ranges and same:
                start = int(found[1])
                if start >= size:
                    self.reply(416, {"Content-Range": f"bytes */{size}"}, b"")
                    return
            headers = {"Content-Type": "application/octet-stream"} | page.headers
            if page.etag:
                headers["ETag"] = page.etag
            if start:
                headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            drop = page.drops.pop(0) if body and page.drops else None
            self.reply(206 if start else 200, headers, page.content[start:], drop, page.length)

        def reply(
            self, code: int, headers: dict[str, str], content: bytes, drop: int | None = None, length: bool = True
        ) -> None:
            self.send_response(code)
            told = {"Content-Length": str(len(content))} if length else {"Connection": "close"}
            for name, value in (told | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client may hang up early
                    self.wfile.write(content if drop is None else content[:drop])
            self.close_connection = drop is not None or not length or self.close_connection

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_address[1]}", pages, seen)
    finally:
        server.shutdown()
        server.server_close()
