"""A file on a web server, read like a local one: if the connection drops, the next read resumes.

`ask` sends a HEAD request and returns what the server says about the file; `Body` is its content as a stream, which
ends at the known or announced size, even if the server goes on sending. A request that fails raises DataMissing, with
the address, the size and how to import the file by hand; one that cannot lead to the file raises CorruptFile.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

from longspan.core import request
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.core.request import Refused, Response, Unreachable, words

MIRROR = "LONGSPAN_MIRROR"  # the address of a folder with all files that are downloaded
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before each retry; reset after request.LEAST bytes have arrived
LARGEST = 16 << 30  # bytes of a file whose size neither publisher nor server tells
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
    except Refused as refused:
        if refused.code not in (400, 403, 405, 501):
            raise source.missing(refused.words) from refused
        try:
            response = _open(source, "GET")
        except Refused as again:
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
        self.position = self.failed_at = start
        self.end = remote.source.size if remote.size is None else remote.size
        self.failures = 0
        self.response: Response | None = None
        self._connect(first=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        while len(view) and (self.end is None or self.position < self.end):
            try:
                piece = self._take(len(view))
            except (OSError, http.client.HTTPException) as error:
                self._pause(words(error), error)
                continue
            if self.position == 0:
                self._refuse_pages(piece)
            view[: len(piece)] = piece
            self.position += len(piece)
            if self.position == self.end:
                self._refuse_more()
            if self.heard is not None:
                self.heard(len(piece))
            return len(piece)
        return 0

    def _take(self, size: int) -> bytes:
        """The next bytes, up to the end of the file; b"" only where the server alone knows the end."""
        if self.response is None:
            self._connect()
        assert self.response is not None
        limit = LARGEST + 1 if self.end is None else self.end
        piece = self.response.take(min(size, limit - self.position))
        if not piece and (self.end is not None or self.position == 0):
            raise ConnectionResetError(f"the connection ended after {self.position} of {self.end or 'unknown'} bytes")
        if self.position + len(piece) > LARGEST and self.end is None:
            raise self._corrupt(f"sends more than {readable(LARGEST)} without telling its size")
        return piece

    def close(self) -> None:
        if self.response is not None:
            self.response.close()
        super().close()

    def _connect(self, first: bool = False) -> None:
        """Request the bytes from `position` on; if the server resumes with the whole file, skip to there."""
        headers = {}
        if self.position:
            headers["Range"] = f"bytes={self.position}-"
            if self.remote.validator:
                headers["If-Range"] = self.remote.validator
        try:
            response = (_open if first else _request)(self.source, "GET", headers)
        except Refused as refused:
            if refused.code == 416 and first and self.position:
                self._restart()
                return
            if refused.code in LATER:
                raise ConnectionError(refused.words) from refused
            raise self.source.missing(refused.words) from refused
        with contextlib.ExitStack() as undo:
            undo.callback(response.close)
            told = _read_headers(self.source, response.headers)
            partial = response.status == 206
            begins, total = _content_range(response.headers) if partial else (0, told.size)
            if total is not None and self.end not in (None, total):
                raise self._corrupt(f"first offered {self.end:,} bytes and then {total:,}")
            if partial and begins != self.position:
                if first and self.position:
                    self._restart()
                    return
                raise self.source.missing(f"the server sent byte {begins} where {self.position} was asked for")
            anew = first and not partial
            same = told.validator == self.remote.validator or (partial and told.validator is None)
            if self.position and not anew and not same:
                raise self.source.missing("the file changed on the server while it was read (run the command again)")
            self.end = total if self.end is None else self.end
            if anew:
                self.position = self.failed_at = 0
            elif not partial:
                _skip(response, self.position)
            undo.pop_all()
        self.response = response

    def _restart(self) -> None:
        """Request the whole file from a server that does not send the rest of it."""
        assert self.position, "a file is asked for as a whole only once"
        self.position = self.failed_at = 0
        self._connect(first=True)

    def _pause(self, why: str, error: Exception) -> None:
        """Wait before the next attempt, or give up after the last one."""
        if self.response is not None:
            self.response.close()
            self.response = None
        if self.position - self.failed_at >= request.LEAST:
            self.failures = 0
        self.failed_at = self.position
        if self.failures >= len(PAUSES_S):
            told = f"{why}, {self.failures + 1} times in a row after {self.position:,} bytes"
            raise self.source.missing(told) from error
        time.sleep(PAUSES_S[self.failures])
        self.failures += 1

    def _refuse_pages(self, begin: bytes) -> None:
        if begin[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise _page(self.source)

    def _refuse_more(self) -> None:
        """A file whose size only the publisher tells must end there; a server that sends more has another file."""
        assert self.response is not None
        if self.response.length is not None:
            return
        try:
            more = self.response.take(1)
        except (OSError, http.client.HTTPException):
            return  # the connection is not closed as it should be, but the file is complete
        if more:
            raise self._corrupt(f"sends more than the {self.end:,} bytes of the file")

    def _corrupt(self, what: str) -> CorruptFile:
        return CorruptFile(
            f"{self.source.address} {what}, so {self.source.filename} cannot be taken from there. Get it elsewhere and "
            f"run: longspan data import {self.source.dataset} PATH"
        )


def _open(source: Source, method: str, headers: dict[str, str] | None = None) -> Response:
    """A first request, retried if the server is busy or drops the connection; an unreachable server is final."""
    for pause in (*PAUSES_S, None):
        try:
            return _request(source, method, headers)
        except Refused as refused:
            if refused.code not in LATER or pause is None:
                raise
        except Unreachable as error:
            raise source.missing(str(error)) from error
        except (ConnectionError, http.client.HTTPException) as error:
            if pause is None:
                raise source.missing(words(error)) from error
        time.sleep(pause)
    raise AssertionError("the last attempt either answers or raises")


def _request(source: Source, method: str, headers: dict[str, str] | None = None) -> Response:
    return request.request(source.address, method, headers)


def _read_headers(source: Source, headers: Message) -> Remote:
    if headers.get_content_type() == "text/html" and not source.filename.endswith((".html", ".htm")):
        raise _page(source)
    packed = headers.get("Content-Encoding", "identity").lower()
    if packed != "identity" and not source.filename.endswith(_PACKED.get(packed, ())):
        raise source.missing("the server sends it compressed, which was not asked for")
    size = _number(headers.get("Content-Length"))
    # Google Cloud Storage may decompress a file while sending it; its digests and length are then of other bytes.
    as_stored = headers.get("x-goog-stored-content-encoding", "identity") == headers.get("Content-Encoding", "identity")
    if size is None and as_stored:
        size = _number(headers.get("x-goog-stored-content-length"))
    digests = _google_digests(headers) if as_stored else {}
    return Remote(source, size, digests.get("md5"), digests.get("crc32c"), _validator(headers))


_PACKED = {"gzip": (".gz", ".tgz"), "x-gzip": (".gz", ".tgz")}  # some servers report the file's own packing this way


def _number(text: str | None) -> int | None:
    """A size in bytes; 0 counts as unknown, since some servers announce it for files that they have."""
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*", text or "")
    return int(found[1]) or None if found else None


def _validator(headers: Message) -> str | None:
    tag, date = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if re.fullmatch(r'"[\x21\x23-\x7e]{0,200}"', tag):
        return tag
    if re.fullmatch(r"[\x20-\x7e]{1,60}", date) and email.utils.parsedate_tz(date) is not None:
        return date
    return None


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
    found = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", headers.get("Content-Range", "").strip())
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _skip(response: Response, count: int) -> None:
    while count > 0:
        piece = response.take(min(count, 1 << 20))
        if not piece:
            raise ConnectionResetError("the connection ended while known bytes were skipped")
        count -= len(piece)


def _page(source: Source) -> DataMissing:
    return source.missing("the server sent a web page in its place (a login, a quota or a warning)")


def readable(size: int | None) -> str:
    """A readable size: `readable(84_125_825)` is '84.1 MB'."""
    if size is None:
        return "size unknown"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
