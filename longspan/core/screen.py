"""A rich console on which texts cannot control the terminal: only rich itself writes control sequences.

Every table, sentence and progress bar of the package is drawn on one of these.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from longspan.core.printable import printable

WIDTH_IN_FILES = 140  # a pipe has no width, and tables wrapped at 80 are hard to read in a log


class Screen(Console):
    """A console that prints texts literally, and leaves lines wider than the terminal to the terminal.

    Markup is off, and rich would cut off lines that are too wide.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"markup": False, "highlight": False, "emoji": False, **settings})

    def print(self, *objects: Any, **settings: Any) -> None:
        super().print(*objects, **{"crop": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def screen(*, error: bool = False) -> Screen:
    """Standard output, or standard error."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_IN_FILES
    return Screen(stderr=error, width=width, soft_wrap=False)
