"""A misbehaving web server on this machine: each request is answered by one bad manner, chosen at random.

A manner is a function that gets the request and yields the bytes to send, or RESET to break the connection.
"""

import contextlib
import gzip
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

RESET = None
TRICKLE_S = 0.004


@dataclass
class Request:
    method: str
    path: str
    start: int | None  # start of the requested range
    content: bytes
    dice: random.Random
    url: str


Manner = Callable[[Request], Iterator[bytes | None]]


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


def well(request: Request, *more: str, etag: str = '"one"') -> Iterator[bytes]:
    """The right answer, with ranges."""
    size, start = len(request.content), request.start or 0
    status = "206 Partial Content" if start else "200 OK"
    told = [f"ETag: {etag}", f"Content-Length: {size - start}", *more]
    if start >= size:
        yield head("416 Range Not Satisfiable", f"Content-Range: bytes */{size}")
        return
    yield head(status, *told, *([f"Content-Range: bytes {start}-{size - 1}/{size}"] if start else []))
    if request.method == "GET":
        yield request.content[start:]


def ranges_ignored(request: Request) -> Iterator[bytes | None]:
    request.start = None
    yield from well(request)


def no_length(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", 'ETag: "one"')
    yield request.content


def chunked(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", "Transfer-Encoding: chunked", 'ETag: "one"')
    for place in range(0, len(request.content), 5_000):
        piece = request.content[place : place + 5_000]
        yield b"%x;why=not\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\nTrailer: yes\r\n\r\n"


def cut_short(request: Request) -> Iterator[bytes | None]:
    yield from cut(well(request), request)


def cut(sent: Iterator[bytes | None], request: Request) -> Iterator[bytes | None]:
    content = b"".join(piece for piece in sent if piece)
    yield content[: request.dice.randrange(len(content) + 1)]


def reset_midway(request: Request) -> Iterator[bytes | None]:
    yield from cut_short(request)
    yield RESET


def chunked_and_cut(request: Request) -> Iterator[bytes | None]:
    yield from cut(chunked(request), request)


def chunked_garbage(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", "Transfer-Encoding: chunked")
    sizes = [b"-5", b"zz", b"", b"0x10", b"f" * 40, b"ffffffff", b"1_0", b"5" * 70_000]
    for _ in range(20):
        yield request.dice.choice(sizes) + b"\r\n" + request.content[:16] + request.dice.choice([b"\r\n", b"", b"\n"])


def other_content(request: Request) -> Iterator[bytes | None]:
    request.content = request.content[::-1]
    yield from well(request)


def other_edition(request: Request) -> Iterator[bytes | None]:
    request.content = request.content[::-1]
    yield from well(request, etag='"two"')


def other_tag(request: Request) -> Iterator[bytes | None]:
    yield from well(request, etag='"two"')


def other_range(request: Request) -> Iterator[bytes | None]:
    """A part, but not the requested one; or one that does not say which."""
    size = len(request.content)
    start = request.dice.randrange(size)
    ranges = [f"{start}-{size - 1}/{size}", f"{start}-{size - 1}/*", "*/*", f"{start}-/9", "", "²", "-1--1/-1"]
    ranges += [f"{start}-{size - 1}/{size + 7}", f"{request.start or 0}-{size}/{'9' * 5_000}"]
    yield head("206 Partial Content", 'ETag: "one"', f"Content-Range: bytes {request.dice.choice(ranges)}")
    yield request.content[start:]


def wrong_length(request: Request) -> Iterator[bytes | None]:
    size = len(request.content)
    lengths = [0, 1, size - 1, size + 1, size * 2, 10**17, -1, "9" * 5_000, "²", "1e5", "", f"{size}, {size}", "0x10"]
    told = [f"Content-Length: {length}" for length in request.dice.choices(lengths, k=2)]
    yield head("200 OK", *told[: request.dice.randint(1, 2)])
    yield request.content


def endless(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", 'ETag: "one"')
    yield from flood(request.content)


def endless_chunks(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", "Transfer-Encoding: chunked")
    yield from flood(b"1000\r\n" + bytes(0x1000) + b"\r\n")


def endless_trailers(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK", "Transfer-Encoding: chunked")
    yield b"%x\r\n%s\r\n0\r\n" % (len(request.content), request.content)
    yield from flood(b"X-More: yes\r\n")


def endless_headers(request: Request) -> Iterator[bytes | None]:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from flood(request.dice.choice([b"X-More: yes\r\n", b"X" * 5_000]))


def endless_patience(request: Request) -> Iterator[bytes | None]:
    yield from flood(head("100 Continue", "X-More: yes"))


def flood(piece: bytes) -> Iterator[bytes]:
    """Gigabytes, unless the client hangs up."""
    many = piece * (65_536 // len(piece) + 1)
    while True:
        yield many


def trickle(content: bytes) -> Iterator[bytes]:
    for byte in content:
        yield bytes([byte])
        time.sleep(TRICKLE_S)


def trickled_headers(request: Request) -> Iterator[bytes]:
    yield from trickle(head("200 OK", f"Content-Length: {len(request.content)}", *["X-More: yes"] * 50))


def trickled_body(request: Request) -> Iterator[bytes]:
    yield head("200 OK", f"Content-Length: {len(request.content)}", 'ETag: "one"')
    yield from trickle(request.content)


def silence(request: Request) -> Iterator[bytes | None]:
    yield from cut_short(request)
    time.sleep(0.3)


def garbage(request: Request) -> Iterator[bytes | None]:
    starts = [b"", b"\0" * 99, b"HTTP/9.9 200 OK\r\n\r\n", b"hello\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\r\n" * 9]
    yield request.dice.choice(starts)
    yield request.dice.randbytes(200)


def odd_headers(request: Request) -> Iterator[bytes | None]:
    odd = ["ETag: \xff\xfe", 'ETag: "a\r\n b"', 'ETag: W/"weak"', f'ETag: "{"x" * 5_000}"', ": nothing", "novalue"]
    odd += ["Last-Modified: \xe9t\xe9", "Last-Modified: 0", "Last-Modified: Mon, 99 Foo 99999 99:99:99 +9999999"]
    odd += ["x-goog-hash: md5=====", "x-goog-hash: md5=AAAA,crc32c=\xff", "Content-Encoding: identity"]
    odd += ["Content-Type: \x80/\x81;;charset=", f"X-Long: {'y' * 60_000}"]
    odd += [f"Last-Modified: {''.join(request.dice.choices('Mon, 1Jan20:+-', k=12))}"]
    yield from well(request, *request.dice.sample(odd, 3))


def statuses(request: Request) -> Iterator[bytes | None]:
    codes = [100, 101, 199, 201, 204, 205, 206, 226, 300, 304, 305, 400, 401, 403, 404, 407, 416, 429, 500, 503, 999]
    yield head(f"{request.dice.choice(codes)} \x1b[31mWhat", "Content-Length: 5", 'WWW-Authenticate: Basic realm="x"')
    yield b"hello"


def redirect(request: Request) -> Iterator[bytes | None]:
    """To a place that must not be followed, or nowhere."""
    targets = ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://127.0.0.1:1/x", "data:text/plain,hello", "gopher://x"]
    targets += ["javascript:alert(1)", "http://[::1", f"http://{'a' * 70}.invalid/", "//", "", "http://127.0.0.1:1/"]
    targets += ["http://user:secret@127.0.0.1:1/", "http://127.0.0.1:99999/", "http:///x", "\xff\xfe", "\x1b[31m"]
    code = request.dice.choice([301, 302, 303, 307, 308])
    where = request.dice.choice(["Location", "Location", "URI"])
    yield head(f"{code} Moved", f"{where}: {request.dice.choice([*targets, request.path])}")
    if request.dice.random() < 0.3:
        yield from flood(b"moved ")


def redirected_well(request: Request) -> Iterator[bytes | None]:
    target = request.dice.choice(["/well", f"{request.url}/well", "well?a=b c#d"])
    yield head(f"{request.dice.choice([301, 302, 303, 307, 308])} Moved", f"Location: {target}", "Content-Length: 0")


def compressed(request: Request) -> Iterator[bytes | None]:
    request.content = gzip.compress(request.content)
    yield from well(request, f"Content-Encoding: {request.dice.choice(['gzip', 'br', 'x-gzip', 'GZIP'])}")


def a_page(request: Request) -> Iterator[bytes | None]:
    request.content = b"<!DOCTYPE html><title>Sign in</title>" * 9
    yield from well(request, *request.dice.choice([["Content-Type: text/html"], []]))


def empty(request: Request) -> Iterator[bytes | None]:
    yield head("200 OK")


GOOD = (well, ranges_ignored, no_length, chunked, redirected_well)
BAD = (cut_short, reset_midway, chunked_and_cut, chunked_garbage, other_content, other_edition, other_tag, other_range)
BAD += (wrong_length, endless, endless_chunks, endless_trailers, endless_headers, endless_patience, garbage)
BAD += (odd_headers, statuses, redirect, compressed, a_page, empty)
SLOW = (trickled_headers, trickled_body, silence)


@dataclass
class BadServer:
    url: str
    content: bytes
    manners: list[Manner] = field(default_factory=list)  # one for each coming request; then good answers
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    seen: list[tuple[str, str]] = field(default_factory=list)  # method, and the name of the manner

    def answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:  # clients hang up at will
            method, path, _ = lines.readline().decode("latin-1").split(" ")
            asked = [line.decode("latin-1").lower().strip().split(": ", 1) for line in iter(lines.readline, b"\r\n")]
            headers = dict(asked)
            start = headers.get("range", "").removeprefix("bytes=").rstrip("-")
            same = headers.get("if-range", '"one"') == '"one"'
            manner = well if path.startswith("/well") or not self.manners else self.manners.pop(0)
            self.seen.append((method, manner.__name__))
            request = Request(method, path, int(start) if start and same else None, self.content, self.dice, self.url)
            for piece in manner(request):
                if isinstance(piece, bytes):
                    connection.sendall(piece)
                else:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def serving_badly(content: bytes) -> Iterator[BadServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        server = BadServer(f"http://127.0.0.1:{listener.getsockname()[1]}", content)

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed at the end of the test
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=server.answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server
