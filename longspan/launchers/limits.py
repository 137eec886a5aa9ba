"""How long a cell may take and how much memory its processes may use.

Built-in mechanisms and tasks have no time limit unless one is set; plug-ins have a day, and a few minutes to be
imported. All may use nine tenths of the memory of the machine, or of the container.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from longspan.core.errors import UsageError

IMPORT_SECONDS = 300.0
PLUGIN_SECONDS = 24 * 3600.0
SHARE_OF_MEMORY = 0.9
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FILE_BYTES = {"": 1, "I": 1} | {
    unit + binary: (1024 if binary else 1000) ** power
    for power, unit in enumerate("KMGT", start=1)
    for binary in ("", "I")
}
_CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Limits:
    """Limits of one cell; None is no limit."""

    seconds: float | None = None  # as requested
    memory_bytes: int | None = None

    @classmethod
    def parse(cls, time: str | None, memory: str | None) -> "Limits":
        """From the words of the command line: `90s`, `30m`, `2h`; `500M`, `16G`."""
        seconds = None if time is None else parse_seconds(time, "--time-limit")
        size = None if memory is None else _parse(memory.upper(), r"([KMGT]?)(?:I?B)?", _BYTES, "--memory-limit", "16G")
        return cls(seconds, int(SHARE_OF_MEMORY * machine_memory()) if size is None else int(size))

    def of(self, *, plugin: bool) -> float | None:
        """Seconds for a cell."""
        return self.seconds if self.seconds is not None or not plugin else PLUGIN_SECONDS


def parse_seconds(text: str, option: str) -> float:
    """`90s`, `30m` or `2h` as seconds.

    >>> parse_seconds("25m", "--budget")
    1500.0
    """
    return _parse(text, r"([smhd]?)", _SECONDS, option, "90s, 30m or 2h")


def parse_file_size(text: str, option: str) -> int:
    """`15MB` as bytes: powers of 1,000, as limits on file sizes are given; `15MiB` has powers of 1,024.

    >>> parse_file_size("15MB", "--part-size"), parse_file_size("1 KiB", "--part-size")
    (15000000, 1024)
    """
    return int(_parse(text.upper(), r"([KMGT]?I?)B?", _FILE_BYTES, option, "15MB"))


def machine_memory() -> int:
    """Bytes that this machine has, or that its container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _CONTAINER):
        said = path.read_text().strip() if path.is_file() else ""
        total = min(total, int(said)) if said.isdigit() else total
    return total


def spell_seconds(seconds: float) -> str:
    unit, size = next(((u, n) for u, n in (("h", 3600), ("min", 60)) if seconds >= n), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


def spell_bytes(count: int) -> str:
    unit, size = next(((u, n) for u, n in (("GiB", 2**30), ("MiB", 2**20)) if count >= n), ("KiB", 2**10))
    return f"{count / size:.3g} {unit}"


def _parse(text: str, units: str, sizes: dict[str, int], option: str, example: str) -> float:
    found = re.fullmatch(rf"(\d{{1,15}}(?:\.\d{{1,6}})?)\s*{units}", text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{option} takes a number with a unit, got {text!r}; write it like {example}.")
    return float(found[1]) * sizes[found[2]]
