"""Clips of speech on the device: tokens of the text, and normalised log mels of the sound."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.packing import real
from longspan.tasks.base import Feed
from longspan.tasks.widths import bucket

PAD, END = 1, 2
FRAME_STEP, TOKEN_STEP = 64, 16  # batches have widths of multiples of these, so that captured updates are reused


@dataclass(frozen=True)
class Hearing:
    """How a network is heard: the entries of its vocabulary, and how its spectrograms become sound."""

    vocabulary: int = 81
    heard: int | None = 16  # clips of the validation split that are synthesised free-running; None is all
    turns: int = 32  # iterations of Griffin-Lim in the test
    validation_turns: int = 8


@dataclass(frozen=True)
class Batch:
    """Clips, padded at the end; `row` is the number of each in its split."""

    row: Int[Tensor, " b"]
    tokens: Int[Tensor, "b m"]
    lengths: Int[Tensor, " b"]
    mel: Float[Tensor, "b n mels"]
    frames: Int[Tensor, " b"]


class SpeechFeed(Feed):
    """Tokens and mels of a whole split; a batch is gathered and normalised on the device.

    With `exact` a batch is as wide as its longest row, for networks that see padding. Frames beyond a multiple of
    `packed` are left out.
    """

    lengths: np.ndarray

    def __init__(
        self, split: Any, device: torch.device | str, hearing: Hearing, *, exact: bool = False, packed: int = 1
    ):
        self.split, self.device, self.hearing, self.exact = split, torch.device(device), hearing, exact
        self.edges, self.token_edges = np.asarray(split.mel_edges), np.asarray(split.token_edges)
        self.lengths, self.token_lengths = np.diff(self.edges) // packed * packed, np.diff(self.token_edges)
        self.mel, self.tokens = self._numbers(split.mel), self._numbers(split.tokens)
        self.mean, self.std = self._numbers(split.mean).float(), self._numbers(split.std).float()

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> Batch:
        width, token_width = self._width(self.lengths, rows, FRAME_STEP), self.token_width(rows)
        frames, lengths = self._numbers(self.lengths[rows]), self._numbers(self.token_lengths[rows])
        mel = (self.gather(self.mel, self.edges, rows, width).float() - self.mean) / self.std
        tokens = self.gather(self.tokens, self.token_edges, rows, token_width).long()
        tokens = tokens.masked_fill(~real(lengths, token_width), PAD)
        return Batch(self._numbers(rows), tokens, lengths, mel * real(frames, width)[..., None], frames)

    def text(self, tokens: list[int]) -> Batch:
        """A batch of one text, which ends in the end token, without sound."""
        one = torch.tensor([[*map(int, tokens)]], device=self.device)
        row, frames = (torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(2))
        return Batch(row, one, row + one.shape[1], self.mean.new_zeros(1, 1, len(self.mean)), frames)

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(-self.lengths[rows], kind="stable")  # the longest first, as in fairseq
        for first in range(0, len(order), size):
            places = order[first : first + size]
            yield places, self.batch(rows[places])

    def log_mel(self, mel: Float[Tensor, "b n mels"]) -> Float[Tensor, "b n mels"]:
        """Undo the normalisation, in single precision."""
        return mel.float() * self.std + self.mean

    def token_width(self, rows: np.ndarray) -> int:
        return self._width(self.token_lengths, rows, TOKEN_STEP)

    def gather(self, flat: Tensor, edges: np.ndarray, rows: np.ndarray, width: int) -> Tensor:
        """What belongs to these rows, and whatever follows it up to the width."""
        index = self._numbers(edges[:-1][rows])[:, None] + torch.arange(width, device=self.device)
        return flat[index.clamp(max=len(flat) - 1)]

    def _width(self, lengths: np.ndarray, rows: np.ndarray, step: int) -> int:
        longest = int(lengths[rows].max(initial=1))
        return longest if self.exact else bucket(longest, step, -(-int(lengths.max()) // step) * step)

    def _numbers(self, values: Any) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self.device, non_blocking=True)
