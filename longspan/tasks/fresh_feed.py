"""Training pictures that are new in every epoch, and flipped and rotated: a data set that cannot be memorised.

The pictures of the next epoch are drawn in threads of low priority while the device trains on those of this one. Which
pictures an epoch has, and how each is turned, depends only on the seeds, the epoch and the row, so that a resumed run,
and several processes, have the same.
"""

import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from longspan.core.environment import available_cpus
from longspan.core.threads import lower_priority
from longspan.datasets.pathfinder import Drawn
from longspan.tasks.base import Feed
from longspan.tasks.lit_feed import count_lit
from longspan.tasks.token_feed import Batch


class Pictures(NamedTuple):
    """One set on the device, and the number of pixels of each picture that are not black, on the host."""

    pixels: UInt8[Tensor, "count n"]
    labels: Int[Tensor, " count"]
    lit: np.ndarray


class FreshFeed(Feed):
    """Row `row + epoch * len(feed)` is a picture of that epoch."""

    numbers_epochs = True

    def __init__(self, split: Drawn, device: torch.device | str, shift: int = 0):
        self.split, self.device, self.shift = split, device, shift
        self.side = split.data.size
        self.lengths = np.full(len(split), self.side**2)
        self._sets: dict[int, Pictures] = {}
        if not split.data.curriculum:  # the first are those on disk
            self._sets[0] = self._moved(np.array(split.tokens).reshape(len(split), -1), np.array(split.labels))
        self._coming: dict[int, list[Future]] = {}
        self._turns = symmetries(self.side).to(device)
        self._threads = ThreadPoolExecutor(available_cpus(), initializer=lower_priority)
        weakref.finalize(self, self._threads.shutdown, wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, rows: np.ndarray) -> Batch:
        seed = int(torch.randint(2**62, ()))
        numbers, places = self._placed(rows)
        parts = [self._chosen(int(number), places[numbers == number]) for number in np.unique(numbers)]
        tokens, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        order = np.argsort(np.argsort(numbers, kind="stable"))  # back to the order of the rows
        if len(parts) > 1:
            back = torch.from_numpy(order).to(self.device)
            tokens, labels = tokens[back], labels[back]
        if self.split.data.symmetries:
            turn = torch.from_numpy(mixed(rows, seed) % 8).to(self.device, non_blocking=True)
            tokens = tokens.gather(1, self._turns[turn])
        return Batch(tokens.int() + self.shift, None, labels)

    def lit(self, rows: np.ndarray) -> np.ndarray:
        """How many pixels of each row are not black."""
        numbers, places = self._placed(rows)
        counts = np.empty(len(rows), np.int64)
        for number in np.unique(numbers):
            counts[numbers == number] = self._set(int(number)).lit[places[numbers == number]]
        return counts

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for first in range(0, len(rows), size):
            places = np.arange(first, min(first + size, len(rows)))
            yield places, self.batch(rows[places])

    def _placed(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The set of each row, by its number, and its place there."""
        epochs, places = np.divmod(rows, len(self))
        return epochs // self.split.data.fresh if self.split.data.fresh else np.zeros_like(epochs), places

    def _chosen(self, number: int, places: np.ndarray) -> tuple[Tensor, Tensor]:
        pictures = self._set(number)
        place = torch.from_numpy(places).to(self.device, non_blocking=True)
        return pictures.pixels[place], pictures.labels[place]

    def _moved(self, pixels: np.ndarray, labels: np.ndarray) -> Pictures:
        on_device = torch.from_numpy(pixels).to(self.device), torch.from_numpy(labels).long().to(self.device)
        return Pictures(*on_device, count_lit(pixels))

    def _set(self, number: int) -> Pictures:
        """The set of this number; starts drawing the next one, and drops those before the previous one."""
        if number not in self._sets:
            drawn = [future.result() for future in self._coming.pop(number, None) or self._begin(number)]
            self._sets = {old: kept for old, kept in self._sets.items() if old == number - 1}
            self._sets[number] = self._moved(*(np.concatenate(part) for part in zip(*drawn, strict=True)))
        if self.split.data.fresh and number == max(self._sets) and number + 1 not in self._coming:
            self._coming = {number + 1: self._begin(number + 1)}
        return self._sets[number]

    def _begin(self, number: int) -> list[Future]:
        return [self._threads.submit(draw) for draw in self.split.shards(number)]


def symmetries(side: int) -> Int[Tensor, "eight n"]:
    """The source of each pixel of a square, for the four rotations and their mirror images."""
    place = torch.arange(side**2).view(side, side)
    turned = [torch.rot90(place, quarter) for quarter in range(4)]
    return torch.stack([one.flatten() for rotated in turned for one in (rotated, rotated.flip(1))])


def mixed(rows: np.ndarray, seed: int) -> np.ndarray:
    """A number below 2^31 for each row and seed, by the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        z = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z >> np.uint64(33)).astype(np.int64)
