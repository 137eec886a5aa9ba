"""Features of many clips, in several processes; each clip is computed once and kept until the corpus is complete.

A finished clip lies in the work folder under a hash of its content, so that an interrupted preparation is resumed, and
one with a changed file recomputes only that file.
"""

import hashlib
import multiprocessing
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path

import numpy as np

from longspan.core.atomic import temporary_beside
from longspan.core.environment import available_cpus
from longspan.datasets.speech import features
from longspan.datasets.speech.features import Clip

FEW = 64  # clips that are computed faster than processes start
AHEAD = 8  # clips handed out to each process


def extract_all(
    clips: Iterable[Clip], work: Path, *, workers: int | None = None, advance: Callable[[], None] = lambda: None
) -> dict[str, Path]:
    """The file with the features of each clip, by the clip's name; see `read_features`."""
    clips = iter(clips)
    first = list(islice(clips, FEW))
    workers = workers or available_cpus()
    if len(first) < FEW or workers == 1:
        return dict(_counted((_ensure(clip, work) for clip in chain(first, clips)), advance))
    context = multiprocessing.get_context("spawn")  # a process that has used torch's threads cannot be forked
    with ProcessPoolExecutor(workers, context, initializer=_one_thread) as pool:
        try:
            return dict(_counted(_handed_out(pool, chain(first, clips), work, AHEAD * workers), advance))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def read_features(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of one clip; None if the file is absent, truncated or altered (zip members have a checksum)."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (FileNotFoundError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _handed_out(pool: ProcessPoolExecutor, clips: Iterable[Clip], work: Path, most: int) -> Iterator[tuple[str, Path]]:
    """In order, at most `most` clips in memory."""
    waiting: deque[Future[tuple[str, Path]]] = deque()
    for clip in clips:
        waiting.append(pool.submit(_ensure, clip, work))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _counted(found: Iterable[tuple[str, Path]], advance: Callable[[], None]) -> Iterator[tuple[str, Path]]:
    for one in found:
        advance()
        yield one


def _ensure(clip: Clip, work: Path) -> tuple[str, Path]:
    """Compute the features of a clip unless they are there."""
    digest = hashlib.sha256(f"{features.VERSION} {clip.official_rate} {clip.voice} {len(clip.content)} ".encode())
    digest.update(clip.content)
    digest.update(clip.textgrid or b"")
    path = work / f"{digest.hexdigest()[:32]}.npz"
    if read_features(path) is None:
        found = features.extract(clip)
        with temporary_beside(path) as temporary, temporary.open("wb") as handle:
            np.savez(handle, allow_pickle=False, **found)
    return clip.name, path


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
