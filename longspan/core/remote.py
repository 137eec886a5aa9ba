"""A file on a web server, read like a local one: if the connection drops, the next read resumes.

`ask` sends a HEAD request and returns what the server says about the file; `Body` is its content as a stream. A request
that fails raises DataMissing, with the address, the size and how to import the file by hand.
"""

import base64
import binascii
import contextlib
import email.utils
import http.client
import io
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

from longspan.core.errors import DataMissing, UsageError

MIRROR = "LONGSPAN_MIRROR"  # the address of a folder with all files that are downloaded
TIMEOUT_S = 30.0
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before each retry; starts again after every byte that arrives
LATER = {408, 425, 429, 500, 502, 503, 504}  # status codes worth a retry


@dataclass(frozen=True)
class Source:
    """A published file. Digests are those of its publisher or of a well-known library, in hexadecimal.

    `dataset` and `licence` are only used in messages.
    """

    url: str
    filename: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    dataset: str = "NAME"
    licence: str = ""

    @property
    def address(self) -> str:
        """Where it is downloaded from: `url`, or the file of that name at $LONGSPAN_MIRROR."""
        mirror = os.environ.get(MIRROR, "").strip()
        if mirror and not mirror.startswith(("http://", "https://")):
            raise UsageError(
                f"{MIRROR} should start with http:// or https://, got {mirror!r}; for local files run: "
                f"longspan data import {self.dataset} PATH"
            )
        return f"{mirror.rstrip('/')}/{self.filename}" if mirror else self.url

    def missing(self, why: str) -> DataMissing:
        """The error for a file that cannot be downloaded: why, and what to do instead."""
        return DataMissing(
            f"{self.filename} ({readable(self.size)}) cannot be downloaded from {self.address}: {why}; get it with a "
            f"browser or on another machine and run: longspan data import {self.dataset} PATH"
        )


@contextlib.contextmanager
def mirrored(address: str | None) -> Iterator[None]:
    """Download from a mirror, as with $LONGSPAN_MIRROR; None changes nothing."""
    before = os.environ.get(MIRROR)
    if address is not None:
        os.environ[MIRROR] = address
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(MIRROR, None)
        else:
            os.environ[MIRROR] = before


@dataclass(frozen=True)
class Remote:
    """What a server says about a file. Digests are of the bytes that it will send, None if it does not say."""

    source: Source
    size: int | None
    md5: str | None = None
    crc32c: str | None = None
    validator: str | None = None  # changes with the content: a strong ETag, else the modification date

    def facts(self) -> dict[str, Any]:
        """For a manifest or a lock file: the address and the digests that the server announced."""
        told = {"size": self.size, "md5": self.md5, "crc32c": self.crc32c, "validator": self.validator}
        return {"url": self.source.url} | {name: value for name, value in told.items() if value is not None}


def ask(source: Source) -> Remote:
    """Ask the server about a file without downloading it; if HEAD is refused, with a GET that is closed at once."""
    announce(source)
    try:
        response = _open(source, "HEAD")
    except _Refused as refused:
        if refused.code not in (400, 403, 405, 501):
            raise source.missing(refused.words) from refused
        try:
            response = _open(source, "GET")
        except _Refused as again:
            raise source.missing(again.words) from again
    with response:
        return _read_headers(source, response.headers)


def announce(source: Source) -> None:
    """Print the licence of a dataset, once per process."""
    if source.licence and source.dataset not in _announced:
        _announced.add(source.dataset)
        print(f"{source.dataset}: {source.licence}", file=sys.stderr, flush=True)


_announced: set[str] = set()


class Body(io.RawIOBase):
    """The bytes of a remote file from `start` on; a dropped connection is resumed where it ended.

    `position` is the offset of the next byte. It may be 0 even if `start` is not: the server sends only whole files (or
    has a shorter one), and the reader has to start again. `heard` is called with the size of every piece.
    """

    def __init__(self, remote: Remote, start: int = 0, heard: Callable[[int], Any] | None = None):
        super().__init__()
        self.remote, self.source, self.heard = remote, remote.source, heard
        self.position, self.end = start, remote.size
        self.failures = 0
        self.response: Any = None
        self._connect(first=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        while self.end is None or self.position < self.end:
            try:
                if self.response is None:
                    self._connect()
                assert self.response is not None
                count = self.response.readinto(view)
                if count == 0 and self.end is not None and self.position < self.end:
                    raise ConnectionResetError(f"the connection ended after {self.position} of {self.end} bytes")
            except (OSError, http.client.HTTPException) as error:
                self._pause(_words(error), error)
                continue
            if self.position == 0:
                self._refuse_pages(bytes(view[:count]))
            self.position += count
            self.failures = 0 if count else self.failures
            if self.heard is not None:
                self.heard(count)
            return count
        return 0

    def close(self) -> None:
        if self.response is not None:
            self.response.close()
        super().close()

    def _connect(self, first: bool = False) -> None:
        """Request the bytes from `position` on; a resumed server that sends the whole file is read up to there."""
        headers = {}
        if self.position:
            headers["Range"] = f"bytes={self.position}-"
            if self.remote.validator:
                headers["If-Range"] = self.remote.validator
        try:
            response = _open(self.source, "GET", headers) if first else _request(self.source, "GET", headers)
        except _Refused as refused:
            if refused.code == 416 and first and self.position:
                self.position = 0
                self._connect(first=True)
                return
            if refused.code in LATER:
                raise ConnectionError(refused.words) from refused
            raise self.source.missing(refused.words) from refused
        told = _read_headers(self.source, response.headers)
        if response.status == 206:
            begins, total = _content_range(response.headers)
            if begins != self.position:
                raise self.source.missing(f"the server sent byte {begins} where {self.position} was asked for")
            self.end = self.end if total is None else total
        elif first:
            self.position, self.end = 0, told.size if self.end is None else self.end
        elif told.validator != self.remote.validator:
            raise self.source.missing("the file changed on the server while it was read (run the command again)")
        else:
            _skip(response, self.position)
        self.response = response

    def _pause(self, words: str, error: Exception) -> None:
        """Wait before the next attempt, or give up after the last one."""
        if self.response is not None:
            self.response.close()
            self.response = None
        if self.failures >= len(PAUSES_S):
            told = f"{words}, {self.failures + 1} times in a row after {self.position:,} bytes"
            raise self.source.missing(told) from error
        time.sleep(PAUSES_S[self.failures])
        self.failures += 1

    def _refuse_pages(self, begin: bytes) -> None:
        if begin[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise _page(self.source)


class _Refused(Exception):
    """The server answered with an error status."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code, self.words = code, words


class _Unreachable(ConnectionError):
    """No answer: no network, no such host, or connection refused."""


def _open(source: Source, method: str, headers: dict[str, str] | None = None) -> Any:
    """A first request, retried if the server is busy or drops the connection; an unreachable server is final."""
    for pause in (*PAUSES_S, None):
        try:
            return _request(source, method, headers)
        except _Refused as refused:
            if refused.code not in LATER or pause is None:
                raise
        except _Unreachable as error:
            raise source.missing(str(error)) from error
        except (ConnectionError, http.client.HTTPException) as error:
            if pause is None:
                raise source.missing(_words(error)) from error
        time.sleep(pause)
    raise AssertionError("the last attempt either answers or raises")


def _request(source: Source, method: str, headers: dict[str, str] | None = None) -> Any:
    """The open response, with status 200 or 206."""
    request = urllib.request.Request(
        source.address, method=method, headers={"User-Agent": "longspan"} | (headers or {})
    )
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Refused(error.code, f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
            raise reason from error
        words = _words(reason) if isinstance(reason, Exception) else str(reason)
        raise _Unreachable(f"the server cannot be reached ({words})") from error
    except TimeoutError as error:
        raise _Unreachable(f"the server did not answer within {TIMEOUT_S:.0f} seconds") from error


def _read_headers(source: Source, headers: Message) -> Remote:
    if headers.get_content_type() == "text/html" and not source.filename.endswith((".html", ".htm")):
        raise _page(source)
    length = headers.get("Content-Length", "")
    size = int(length) if length.isdigit() else None
    # Google Cloud Storage may decompress a file while sending it; its digests and length are then of other bytes.
    as_stored = headers.get("x-goog-stored-content-encoding", "identity") == headers.get("Content-Encoding", "identity")
    stored = headers.get("x-goog-stored-content-length", "")
    if size is None and as_stored and stored.isdigit():
        size = int(stored)
    digests = _google_digests(headers) if as_stored else {}
    tag = headers.get("ETag", "")
    validator = tag if tag.startswith('"') else headers.get("Last-Modified")
    if validator and not validator.startswith('"') and email.utils.parsedate_tz(validator) is None:
        validator = None
    return Remote(source, size, digests.get("md5"), digests.get("crc32c"), validator)


def _google_digests(headers: Message) -> dict[str, str]:
    """`x-goog-hash: crc32c=AAAAAA==,md5=...`, one header or several, as hexadecimal."""
    found = {}
    for name, value in re.findall(r"(md5|crc32c)=([A-Za-z0-9+/]+={0,2})", ",".join(headers.get_all("x-goog-hash", []))):
        try:
            found[name] = base64.b64decode(value, validate=True).hex()
        except binascii.Error:
            continue  # malformed: no information about the file
    return found


def _content_range(headers: Message) -> tuple[int, int | None]:
    """First byte and total size of a partial response: `Content-Range: bytes 100-199/200`."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "").strip())
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _skip(response: Any, count: int) -> None:
    while count > 0:
        piece = response.read(min(count, 1 << 20))
        if not piece:
            raise ConnectionResetError("the connection ended while known bytes were skipped")
        count -= len(piece)


def _page(source: Source) -> DataMissing:
    return source.missing("the server sent a web page in its place (a login, a quota or a warning)")


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing arrived for {TIMEOUT_S:.0f} seconds"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def readable(size: int | None) -> str:
    """A readable size: `readable(84_125_825)` is '84.1 MB'."""
    if size is None:
        return "size unknown"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
