"""A long generation cut into shards: each is seeded by its number, written whole, and made again if it is not sound.

The result does not depend on how many threads made it, nor on how often the work was killed and taken up again.
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
    """Some examples, one after another: `tokens` flat uint8, `lengths` int64 [count], `labels` uint8 [count]."""

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray

    @classmethod
    def of_texts(cls, texts: Sequence[bytes], labels: Sequence[int] | None = None) -> "Shard":
        """Without labels they are all 0."""
        lengths = np.array([len(text) for text in texts], np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), lengths, np.array(labels or [0] * len(texts), np.uint8))

    def rows(self) -> list[np.ndarray]:
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])


class Shards:
    """The shards of one setting in `folder`; `make(index)` says what is in each."""

    def __init__(self, folder: Path, make: Callable[[int], Shard]):
        self.folder, self.make = folder, make

    def path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.npz"

    def read(self, index: int) -> Shard:
        """Shard `index` from disk; made now where it is absent or broken."""
        shard = read_shard(self.path(index))
        if shard is None:
            shard = self.make(index)
            write_shard(self.path(index), shard)
        return shard

    def _ensure(self, index: int) -> None:
        """`read` for its effect alone: a finished task must not keep its shard in memory."""
        self.read(index)

    def make_all(self, count: int, *, workers: int | None = None, progress: bool = True, title: str = "") -> None:
        """See that shards 0 .. count - 1 are on disk and sound."""
        with _Bar(title, count, show=progress) as advance, ThreadPoolExecutor(workers or available_cpus()) as pool:
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
    """The shard at `path`, or None where the file is absent, cut short or altered (zip members carry a checksum)."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            shard = Shard(arrays["tokens"], arrays["lengths"], arrays["labels"])
    except (FileNotFoundError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    fits = len(shard.lengths) == len(shard.labels) and shard.lengths.sum() == len(shard.tokens)
    return shard if fits else None


class _Bar:
    """A progress bar on a terminal, nothing elsewhere; entering gives the function that advances it by one."""

    def __init__(self, title: str, total: int, *, show: bool):
        self.title, self.total, self.show = title, total, show and sys.stderr.isatty()

    def __enter__(self) -> Callable[[], None]:
        if not self.show:
            return lambda: None
        from rich.console import Console
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True)).__enter__()
        task = self.progress.add_task(self.title, total=self.total)
        return lambda: self.progress.advance(task)

    def __exit__(self, *error) -> None:
        if self.show:
            self.progress.__exit__(*error)
