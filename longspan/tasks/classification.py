"""Sequence classification: the part that every task with tokens in and one label out shares."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier
from longspan.backbones.slots import AttentionFactory
from longspan.core.errors import UsageError
from longspan.datasets.base import Split
from longspan.kernels.packing import Rows
from longspan.metrics.classification import accuracy, majority_rate
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task, TaskMeta
from longspan.tasks.masked_tokens import MaskedTokens

WIDTH_STEP = 64  # batches have widths of multiples of this, so that compiled code meets few of them
TOTAL_STEP = 2048  # real and filling tokens of a batch on a GPU are a multiple of this


@dataclass(frozen=True)
class Batch:
    """Texts and the answers; where an example is a pair, all first texts come before all second ones."""

    tokens: Int[Tensor, "texts n"]
    lengths: Rows | None  # None where all rows are full
    label: Int[Tensor, " b"]


class TokenFeed(Feed):
    """Bytes of a whole split on the device; a batch is one gather, hardly wider than its longest text, 0 elsewhere."""

    def __init__(self, split: Split, device: torch.device | str, shift: int = 0, end: int | None = None):
        """`end` is the id of a symbol that is set behind every text."""
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
        """As wide as the longest text, and filled up to one of few totals: a recorded update wants few shapes."""
        lengths = self.lengths[rows].T.ravel()
        if lengths.min() == self.longest:
            return self._gather(rows, lengths, len(lengths), self.longest)
        step = min(TOTAL_STEP, self.longest)
        filler = step - int(lengths.sum()) % step
        return self._gather(rows, np.append(lengths, filler), len(lengths), self.longest)

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(self.lengths[rows].max(axis=1), kind="stable")  # like lengths together: little padding
        for first in range(0, len(order), size):
            places = order[first : first + size]
            lengths = self.lengths[rows[places]].T.ravel()
            yield places, self._gather(rows[places], lengths, len(lengths), self._width(lengths))

    def _width(self, lengths: np.ndarray) -> int:
        return min(-(-int(lengths.max()) // WIDTH_STEP) * WIDTH_STEP, self.longest)

    def _gather(self, rows: np.ndarray, lengths: np.ndarray, count: int, width: int) -> Batch:
        """`lengths` of the texts, `count` in all, and of a row beyond them that only fills."""
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


def encoder_task(title: str) -> TaskMeta:
    """What the tasks of Long Range Arena have in common."""
    return TaskMeta(
        title=title,
        version=1,
        paper="arXiv:2011.04006",
        score="accuracy",
        higher_is_better=True,
        backbone="encoder_classifier",
        slots={"encoder": Pattern.NONCAUSAL_SELF},
    )


class Classification(Task):
    """Cross-entropy and accuracy over an encoder of tokens.

    `shift` is added to every byte, so that 0 can mean padding and nothing else; `symbols` counts the bytes there are.
    """

    takes_network = True
    symbols: ClassVar[int] = 256
    classes: ClassVar[int]
    pixels: ClassVar[bool] = False  # tokens are intensities, so that they may also be given as numbers

    def shift(self, protocol: Protocol) -> int:
        as_released = self.pixels and protocol.model.hide_zeros  # where black is padding
        return 0 if as_released or protocol.model.input_mode == "continuous" else 1

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        if protocol.model.input_mode == "continuous" and not self.pixels:
            raise UsageError(f"{self.name} has symbols, not intensities, for tokens; leave input_mode=ids.")
        ends = protocol.model.end_token
        vocabulary, length = self._end(protocol) + ends, self.longest(protocol) + ends
        network = self.network or EncoderClassifier
        return network(attention, protocol.model, vocabulary=vocabulary, classes=self.classes, length=length)

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> Feed:
        end = self._end(protocol) if protocol.model.end_token else None
        return TokenFeed(split, device, self.shift(protocol), end)

    def _end(self, protocol: Protocol) -> int:
        """The first id that no symbol has, which is that of the end token."""
        return self.symbols + self.shift(protocol)

    def loss(self, model: nn.Module, batch: Batch, *, smoothing: float = 0.0) -> StepResult:
        logits = model(batch.tokens, batch.lengths)
        loss = F.cross_entropy(logits.float(), batch.label, label_smoothing=smoothing)
        right = (logits.detach().argmax(dim=-1) == batch.label).sum()
        count = len(batch.label)
        return StepResult(loss, {"loss": loss.detach() * count, "accuracy": right}, count)

    def pretraining(self, protocol: Protocol) -> Task:
        return MaskedTokens(self, protocol.recipe.masked)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        places, prediction, label, loss = [], [], [], []
        for place, batch in feed.in_batches(rows, batch_size):
            logits = model(batch.tokens, batch.lengths).float()
            places.append(place)
            prediction.append(logits.argmax(dim=-1))
            label.append(batch.label)
            loss.append(F.cross_entropy(logits, batch.label, reduction="none"))
        order = np.argsort(np.concatenate(places))
        predicted, labels, losses = (torch.cat(part).cpu().numpy()[order] for part in (prediction, label, loss))
        metrics = {"accuracy": accuracy(predicted, labels), "loss": float(losses.astype(np.float64).mean())}
        return Evaluation(metrics, len(rows), {"row": rows, "prediction": predicted, "label": labels})

    def chance(self, split: Split) -> float:
        return majority_rate(np.asarray(split.labels))
