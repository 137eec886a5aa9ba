"""Lines of a table with free text in it: bytes that end at a line feed and nowhere else, with the place each stands at.

Texts hold carriage returns, form feeds and U+0085, at which Python's text files and `splitlines` would cut them.
"""

import io
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from longspan.core.errors import CorruptFile

LONGEST = 64 << 20  # bytes of a line: what is longer is no table


def lines(file: Path | IO[bytes] | io.RawIOBase, where: str | None = None) -> Iterator[tuple[bytes, str]]:
    """Every line without its end, and its place in words: `train.tsv, line 3`. A path that ends in .xz is unpacked."""
    if isinstance(file, Path):
        with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as handle:
            yield from lines(handle, str(file))
        return
    buffered = io.BufferedReader(file, 1 << 20) if isinstance(file, io.RawIOBase) else file
    number = 0
    try:
        while line := buffered.readline(LONGEST):
            number += 1
            if len(line) == LONGEST:
                raise CorruptFile(f"{where}, line {number} does not end within {LONGEST:,} bytes; it is not a table.")
            yield line.removesuffix(b"\n"), f"{where}, line {number}"
    except (lzma.LZMAError, EOFError) as error:
        raise CorruptFile(f"{where}, after line {number}: cannot be unpacked ({error}); get it again.") from error
