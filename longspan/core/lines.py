"""Lines of a table as bytes, split at line feeds only, each with its file and line number.

Texts contain carriage returns, form feeds and U+0085, where Python's text files and `splitlines` would split them.
"""

import io
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from longspan.core.errors import CorruptFile

LONGEST = 64 << 20  # bytes; a file with a longer line is not a table


def lines(file: Path | IO[bytes] | io.RawIOBase, where: str | None = None) -> Iterator[tuple[bytes, str]]:
    """Every line without its line feed, and its place: `train.tsv, line 3`. A path ending in .xz is decompressed."""
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
        raise CorruptFile(f"{where}, after line {number}: cannot be decompressed ({error}); get it again.") from error
