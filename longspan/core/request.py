"""One HTTP request, to a server that may be slow, broken or hostile.

Only http and https are used, also after a redirect, and never plain http after https. The response must keep a minimum
speed, headers included: LEAST bytes in each WINDOW_S seconds of waiting. Headers and the framing of a body have a
maximum size. No credentials are sent except those of a proxy, to the proxy.
"""

import http.client
import io
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

TIMEOUT_S = 30.0  # without a single byte
WINDOW_S = 60.0
LEAST = 60_000  # bytes in a window; also the progress that resets the count of failures
REDIRECTS = 5
FRAMING = 1 << 20  # bytes of headers, or of chunk sizes and trailers around one piece of a body


class Refused(Exception):
    """The server answered with an error status, or with a redirect that is not followed."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code, self.words = code, words


class Unreachable(ConnectionError):
    """No answer: no network, no such host, or connection refused."""


class TooSlow(ConnectionError):
    """The server sends, but hardly anything."""


class Response(http.client.HTTPResponse):
    """A response whose headers have been read and whose body is read piece by piece."""

    def __init__(self, sock: Any, *more: Any, **names: Any):
        super().__init__(sock, *more, **names)
        self.wire = _Wire(self.fp.detach())  # type: ignore[attr-defined]
        self.fp = io.BufferedReader(self.wire)  # type: ignore[assignment]

    def take(self, size: int) -> bytes:
        """The next bytes of the body, as soon as there are any, at most `size`; b"" at its end."""
        self.wire.allowance = FRAMING + 8 * size
        return self.read1(size)


class _Wire(io.RawIOBase):
    """Counts all that arrives on a connection. Time between reads is the reader's, not the server's."""

    def __init__(self, socket: Any):
        super().__init__()
        self.socket, self.allowance = socket, FRAMING
        self.waited_s, self.arrived = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        started = time.monotonic()
        count = self.socket.readinto(buffer)
        self.waited_s += time.monotonic() - started
        self.arrived += count
        self.allowance -= count
        if self.allowance < 0:
            raise http.client.HTTPException("the server sends headers and no file")
        if count and self.waited_s > WINDOW_S:
            if self.arrived < LEAST:
                raise TooSlow(f"only {self.arrived:,} bytes arrived in {self.waited_s:.0f} seconds")
            self.waited_s, self.arrived = 0.0, 0
        return count

    def close(self) -> None:
        self.socket.close()
        super().close()


class _Connection(http.client.HTTPConnection):
    response_class = Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = Response


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_SecureConnection, req)  # type: ignore[arg-type]


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = REDIRECTS

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # urllib would read the body to its end, which may never come
        scheme = urlsplit(urljoin(req.full_url, headers.get("Location") or headers.get("URI") or "")).scheme
        if scheme not in ("http", "https"):
            raise Refused(code, f"the server redirects to {scheme[:20]}:, where only http and https are followed")
        if scheme == "http" and req.type == "https":
            raise Refused(code, "the server redirects from https to http, which anyone on the way could change")
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            new.remove_header("Proxy-authorization")  # the next server may be reached without the proxy
        return new


def request(address: str, method: str, headers: dict[str, str] | None = None) -> Response:
    """The open response, with status 200 or 206. Other answers raise Refused; ConnectionError is worth a retry."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler, _Http, _Https, _Redirects):
        opener.add_handler(handler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    try:
        asked = urllib.request.Request(address, method=method, headers={"User-Agent": "longspan"} | (headers or {}))
        response = opener.open(asked, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        raise Refused(error.code, f"the server {_answer(error.code)}") from error
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
            raise reason from error
        said = words(reason) if isinstance(reason, Exception) else str(reason)
        raise Unreachable(f"the server cannot be reached ({said})") from error
    except TimeoutError as error:
        raise Unreachable(f"the server did not answer within {TIMEOUT_S:.0f} seconds") from error
    except (ConnectionError, http.client.HTTPException):
        raise
    except OSError as error:
        raise ConnectionError(words(error)) from error
    except ValueError as error:
        raise Refused(0, "its address, or one that the server redirects to, is malformed") from error
    if response is None:
        raise Refused(0, "its address should start with http:// or https://")
    if response.status not in (200, 206):
        response.close()
        raise Refused(response.status, f"the server {_answer(response.status)}")
    return response


def _answer(code: int) -> str:
    """The status in our words: those of a server may be long, and may control a terminal."""
    if 300 <= code < 400:
        return f"answered {code}, and redirects more than {REDIRECTS} times or nowhere"
    known = {status.value: status.phrase for status in HTTPStatus}
    return f"answered {code} {known.get(code, '')}".rstrip()


def words(error: BaseException) -> str:
    """What went wrong on a connection, for the middle of a sentence."""
    if isinstance(error, TimeoutError):
        return f"nothing arrived for {TIMEOUT_S:.0f} seconds"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(error, (http.client.BadStatusLine, http.client.UnknownProtocol, http.client.LineTooLong)):
        return "the server does not answer in HTTP"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
