r"""Text that cannot control a terminal, whatever its source: cards, file names, servers, plug-ins.

    printable("a\x1b[2Jb")             # 'a�[2Jb'
    with plain_streams(): ...          # whatever is printed inside goes through it

Control characters, direction overrides, invisible letters and odd line breaks become U+FFFD. Colours and progress bars
are drawn by `core/screen.py`, which writes to the streams beneath.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, keep: str = "\n") -> str:
    """The text with non-printable characters replaced, except those of `keep`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else REPLACEMENT for letter in text)


def shown(text: str) -> str:
    """Text from a card without control characters or direction overrides, safe to print in a terminal."""
    return printable(text, keep="")


class PlainStream:
    """A text stream that shows everything as text. Rich knows `rich_proxied_file` and bypasses it."""

    def __init__(self, stream: TextIO):
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def make_streams_plain() -> tuple[TextIO, TextIO]:
    """From now on standard output and standard error show everything as text; returns what they were."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (  # type: ignore[assignment]  # a stream in all that printing needs
        stream if isinstance(stream, PlainStream) else PlainStream(stream) for stream in before
    )
    return before


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Inside, standard output and standard error show everything as text."""
    before = make_streams_plain()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
