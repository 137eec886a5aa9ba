"""Generation in shards: each is seeded by its index, written atomically, and made again if it is damaged.

The result does not depend on the number of threads, nor on interruptions.
"""

import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longspan.core.atomic import temporary_beside
from longspan.core.environment import available_cpus


@dataclass(frozen=True, eq=False)
class Shard:
    """Some examples, concatenated: `tokens` flat uint8 (or wider), `lengths` int64 [count], `labels` uint8 [count]."""

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray

    @classmethod
    def of_texts(cls, texts: Sequence[bytes], labels: Sequence[int] | None = None) -> "Shard":
        """All labels are 0 unless given."""
        lengths = np.array([len(text) for text in texts], np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), lengths, np.array(labels or [0] * len(texts), np.uint8))

    def rows(self) -> list[np.ndarray]:
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])


class Shards:
    """The shards of one setting in `folder`, made by `make(index)`."""

    def __init__(self, folder: Path, make: Callable[[int], Shard]):
        self.folder, self.make = folder, make

    def path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.npz"

    def read(self, index: int) -> Shard:
        """Shard `index` from disk; made now if it is absent or damaged."""
        shard = read_shard(self.path(index))
        if shard is None:
            shard = self.make(index)
            write_shard(self.path(index), shard)
        return shard

    def _ensure(self, index: int) -> None:
        """`read` without a result, so that finished futures do not keep shards in memory."""
        self.read(index)

    def make_all(self, count: int, *, workers: int | None = None, progress: bool = True, title: str = "") -> None:
        """Ensure that shards 0 .. count - 1 are on disk and undamaged."""
        with Bar(title, count, show=progress) as advance, ThreadPoolExecutor(workers or available_cpus()) as pool:
            futures = [pool.submit(self._ensure, index) for index in range(count)]
            try:
                for future in as_completed(futures):
                    future.result()
                    advance()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def write_shard(path: Path, shard: Shard) -> None:
    with temporary_beside(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, tokens=shard.tokens, lengths=shard.lengths, labels=shard.labels)


def read_shard(path: Path) -> Shard | None:
    """The shard at `path`, or None if the file is absent, truncated or altered (zip members have a checksum)."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            shard = Shard(arrays["tokens"], arrays["lengths"], arrays["labels"])
    except (FileNotFoundError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    fits = len(shard.lengths) == len(shard.labels) and shard.lengths.sum() == len(shard.tokens)
    return shard if fits else None


class Bar:
    """A progress bar on a terminal, nothing elsewhere; yields the function that advances it by one."""

    def __init__(self, title: str, total: int, *, show: bool):
        self.title, self.total, self.show = title, total, show and sys.stderr.isatty()

    def __enter__(self) -> Callable[[], None]:
        if not self.show:
            return lambda: None
        from rich.progress import Progress

        from longspan.core.screen import Screen

        self.progress = Progress(console=Screen(stderr=True)).__enter__()
        task = self.progress.add_task(self.title, total=self.total)
        return lambda: self.progress.advance(task)

    def __exit__(self, *error) -> None:
        if self.show:
            self.progress.__exit__(*error)
