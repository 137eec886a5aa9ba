"""Language models: what all tasks share whose data are streams of tokens and whose score is perplexity."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.datasets.base import Split
from longspan.datasets.bpe import END, PAD
from longspan.metrics.perplexity import mean_nats, perplexity, unigram_perplexity
from longspan.tasks.base import Evaluation, Feed, StepResult, Task, TaskMeta

RESIDENT = 8 << 30  # bytes of a stream that fit on the device; batches of a longer one are read from disk
COUNTED = 1 << 22  # tokens that are counted at a time


class StreamFeed(Feed):
    """A stream of tokens, in the two or four bytes that a token has on disk; a batch is one gather.

    A GPU holds the stream if it is not too long. On a CPU, or if it is too long, each process reads its own rows of a
    batch from the memory-mapped file: a corpus may be larger than memory, and processes share its pages.
    """

    def __init__(self, split: Split, device: torch.device | str, length: int):
        split = split.cut(length)
        self.device = torch.device(device)
        self.starts, self.lengths = np.asarray(split.starts), np.asarray(split.lengths)
        self.stream = split.tokens
        self.tokens: Tensor | None = None
        if split.tokens.nbytes <= RESIDENT:
            signed = {1: np.uint8, 2: np.int16, 4: np.int32}[split.tokens.dtype.itemsize]  # which torch can index
            numbers = np.asarray(split.tokens).view(signed)
            self.tokens = mapped(numbers) if self.device.type == "cpu" else torch.tensor(numbers, device=device)
            self.bits = (1 << 8 * split.tokens.dtype.itemsize) - 1

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, rows: np.ndarray) -> Int[Tensor, "b n"]:
        """These rows, each with the token that precedes it (`</s>` before the first); padded at the right."""
        start = torch.from_numpy(np.ascontiguousarray(self.starts[rows]))[:, None]
        length = torch.from_numpy(np.ascontiguousarray(self.lengths[rows]))[:, None]
        place = torch.arange(-1, int(length.max()))
        if self.tokens is None:
            index = (start + place).clamp(0, len(self.stream) - 1).numpy()
            tokens = torch.from_numpy(np.asarray(self.stream[index], np.int64)).to(self.device)
        else:
            index = (start + place).clamp(0, len(self.stream) - 1).to(self.device, non_blocking=True)
            tokens = self.tokens[index].long() & self.bits
        past = (place >= length).to(self.device, non_blocking=True)
        before = (start + place < 0).to(self.device, non_blocking=True)
        return tokens.masked_fill(past, PAD).masked_fill(before, END)

    def follows(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        return self.starts[rows] == self.starts[before] + self.lengths[before]

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Any]]:
        order = np.argsort(self.lengths[rows], kind="stable")
        for first in range(0, len(order), size):
            places = order[first : first + size]
            yield places, self.batch(rows[places])


def mapped(numbers: np.ndarray) -> Tensor:
    """A tensor that shares the memory of a read-only array, such as a memory-mapped file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(numbers)


def language_task(title: str, backbone: str, slots: dict[str, Pattern]) -> TaskMeta:
    """What the language tasks of the Comprehensive Attention Benchmark have in common."""
    return TaskMeta(
        title=title,
        version=1,
        paper="arXiv:2210.07661",
        score="perplexity",
        higher_is_better=False,
        backbone=backbone,
        slots=slots,
        unit="plain",
    )


class LanguageTask(Task):
    """Tokens of PG-19 scored by perplexity; `chance` is that of a unigram model of the training text."""

    dataset = "pg19"

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(means["loss"])}

    def chance(self, split: Any) -> float:
        met, stream = np.zeros(len(split.frequencies), np.int64), split.tokens
        for first in range(0, len(stream), COUNTED):
            met += np.bincount(stream[first : first + COUNTED], minlength=len(met))
        return unigram_perplexity(split.frequencies, met)

    @abstractmethod
    def pose(self, batch: Any, *, settled: bool) -> tuple[tuple[Any, ...], np.ndarray]:
        """The arguments of the network, which returns the loss of each target, and the number of targets of each row.

        `settled`: the same targets for a row every time, as in validation and test.
        """

    def loss(self, model: nn.Module, batch: Any, *, smoothing: float = 0.0) -> StepResult:
        if smoothing:
            raise UsageError(
                f"{self.name} is scored by the loss it descends, so recipe.label_smoothing must be 0, got {smoothing}."
            )
        question, counts = self.pose(batch, settled=False)
        answer, count = model(*question), int(counts.sum())
        nats, carry = answer if isinstance(answer, tuple) else (answer, None)
        total = nats.sum()
        return StepResult(total / max(1, count), {"loss": total.detach()}, count, carry=carry)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        nats, tokens = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
        for places, batch in feed.in_batches(rows, batch_size):
            question, tokens[places] = self.pose(batch, settled=True)
            nats[places] = model(*question).double().sum(dim=1).cpu().numpy()
        means = {"loss": mean_nats(nats, tokens)}
        predictions = {"row": rows, "nats": nats, "tokens": tokens}
        return Evaluation(means | self.derived(means), int(tokens.sum()), predictions)
