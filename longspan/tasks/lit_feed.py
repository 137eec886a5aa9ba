"""Pictures without their black pixels, which the network leaves out (`zero_rule="drop"`).

The lit pixels of a picture are counted on the host, so that nothing waits for the device. On a GPU a batch is filled up
to one of few totals with filler rows, since updates captured as CUDA graphs need few shapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from longspan.datasets.base import Split
from longspan.kernels.packing import Rows, real
from longspan.tasks.base import Feed
from longspan.tasks.token_feed import Batch

TOTAL_STEP = 8192  # lit and filler pixels of a batch on a GPU are a multiple of this
LONGEST_STEP = 128  # and the longest row is a multiple of this


def count_lit(pixels: np.ndarray) -> np.ndarray:
    """The lit pixels of each picture [count n]; an all-black one shows its first pixel."""
    return np.count_nonzero(pixels, axis=1).clip(min=1)


class LitFeed(Feed):
    """The batches of `feed`, whose rows are full, with the number of lit pixels; `lit` counts them by row numbers."""

    def __init__(self, feed: Feed, lit: Callable[[np.ndarray], np.ndarray]):
        self.feed, self.lit, self.lengths = feed, lit, feed.lengths
        self.numbers_epochs = feed.numbers_epochs

    @classmethod
    def of(cls, split: Split, feed: Feed) -> "LitFeed":
        """Over the rows of a split."""
        before = np.append(0, np.cumsum(np.asarray(split.tokens) > 0))
        lit = (before[split.stops] - before[split.starts]).clip(min=1)
        return cls(feed, lambda rows: lit[rows])

    def __len__(self) -> int:
        return len(self.feed)

    def batch(self, rows: np.ndarray) -> Batch:
        batch, lit = self.feed.batch(rows), self.lit(rows)
        return filled(batch, lit) if batch.tokens.is_cuda else replace(batch, lengths=Rows.of(lit.tolist()))

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        for places, batch in self.feed.in_batches(rows, size):
            lit = Rows.of(self.lit(rows[places]).tolist(), batch.tokens.device)
            yield places, replace(batch, lengths=lit)


def filled(batch: Batch, lit: np.ndarray) -> Batch:
    """With filler rows for what is missing: at least one token in each, and no more than about half of its width."""
    count, width = batch.tokens.shape
    extra = 2 * -(-TOTAL_STEP // width)
    filling = TOTAL_STEP - int(lit.sum()) % TOTAL_STEP
    filling += TOTAL_STEP * (filling < extra)
    share, more = divmod(filling, extra)
    lengths = np.append(lit, np.full(extra, share) + (np.arange(extra) < more))
    longest = min(-(-int(lengths.max()) // LONGEST_STEP) * LONGEST_STEP, width)
    on_device = torch.from_numpy(lengths).to(batch.tokens.device, non_blocking=True)
    tokens = F.pad(batch.tokens, (0, 0, 0, extra))
    tokens[count:] = real(on_device[count:], width)
    return replace(batch, tokens=tokens, lengths=Rows(on_device, int(lengths.sum()), longest, count))
