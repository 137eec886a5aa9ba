"""Rows of bytes on the device: a batch is one gather, packed by the lengths of its rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from longspan.datasets.base import Split
from longspan.kernels.packing import Rows
from longspan.tasks.base import Feed

WIDTH_STEP = 64  # batches have widths of multiples of this, so that compiled code sees few of them
TOTAL_STEP = 2048  # real and filler tokens of a batch on a GPU are a multiple of this


@dataclass(frozen=True)
class Batch:
    """Texts and the answers; where an example is a pair, all first texts come before all second ones."""

    tokens: Int[Tensor, "texts n"]
    lengths: Rows | None  # None where all rows are full
    label: Int[Tensor, " b"]


class TokenFeed(Feed):
    """Bytes of a whole split on the device; a batch is one gather, hardly wider than its longest text, 0 elsewhere."""

    def __init__(self, split: Split, device: torch.device | str, shift: int = 0, end: int | None = None):
        """`end` is the id of a symbol that is appended to every text."""
        columns = (len(split), -1)  # one text an example, or two
        self.tokens = torch.tensor(split.tokens, device=device)
        self.starts = torch.tensor(split.starts, device=device).reshape(columns)
        self.labels = torch.tensor(split.labels, device=device).long()
        self.lengths = np.ascontiguousarray(split.lengths).reshape(columns) + (end is not None)
        self.longest = int(self.lengths.max(initial=0))
        self.shift, self.end = shift, end

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> Batch:
        if self.tokens.is_cuda:
            return self.filled(rows)
        lengths = self.lengths[rows].T.ravel()
        return self._gather(rows, lengths, len(lengths), self._width(lengths))

    def filled(self, rows: np.ndarray) -> Batch:
        """As wide as the longest text, and filled up to one of few totals: captured updates need few shapes."""
        lengths = self.lengths[rows].T.ravel()
        if lengths.min() == self.longest:
            return self._gather(rows, lengths, len(lengths), self.longest)
        step = min(TOTAL_STEP, self.longest)
        filler = step - int(lengths.sum()) % step
        return self._gather(rows, np.append(lengths, filler), len(lengths), self.longest)

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(self.lengths[rows].max(axis=1), kind="stable")  # similar lengths together: little padding
        for first in range(0, len(order), size):
            places = order[first : first + size]
            lengths = self.lengths[rows[places]].T.ravel()
            yield places, self._gather(rows[places], lengths, len(lengths), self._width(lengths))

    def _width(self, lengths: np.ndarray) -> int:
        return min(-(-int(lengths.max()) // WIDTH_STEP) * WIDTH_STEP, self.longest)

    def _gather(self, rows: np.ndarray, lengths: np.ndarray, count: int, width: int) -> Batch:
        """`lengths` of the texts, `count` in all, and of a filler row if there is one more."""
        device = self.tokens.device
        row = torch.from_numpy(np.ascontiguousarray(rows)).to(device, non_blocking=True)
        length = torch.from_numpy(lengths).to(device, non_blocking=True)
        place = torch.arange(width, device=device)
        index = self.starts[row].T.reshape(-1, 1) + place
        tokens = self.tokens[index.clamp(max=self.tokens.numel() - 1)].int() + self.shift
        if self.end is not None:
            tokens = tokens.masked_fill(place == length[:count, None] - 1, self.end)
        tokens = F.pad(tokens.masked_fill(place >= length[:count, None], 0), (0, 0, 0, len(lengths) - count))
        full = int(lengths.min()) == width
        total, longest = int(lengths.sum()), width if len(lengths) > count else int(lengths.max())
        return Batch(tokens, None if full else Rows(length, total, longest, count), self.labels[row])
