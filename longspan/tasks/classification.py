"""Sequence classification: the part that every task with tokens in and one label out shares."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from longspan.datasets.base import Split
from longspan.metrics.classification import accuracy, majority_rate
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task


@dataclass(frozen=True)
class Batch:
    tokens: Int[Tensor, "b n"]
    lengths: list[int]
    label: Int[Tensor, " b"]


class TokenFeed(Feed):
    """Bytes of a whole split on the device; a batch is one gather, as wide as its longest row, 0 after the end."""

    def __init__(self, split: Split, device: torch.device | str, shift: int = 0):
        self.tokens = torch.tensor(split.tokens, device=device)
        self.starts = torch.tensor(split.starts, device=device)
        self.labels = torch.tensor(split.labels, device=device).long()
        self.lengths = np.ascontiguousarray(split.lengths)
        self.shift = shift

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> Batch:
        lengths = self.lengths[rows].tolist()
        row = torch.from_numpy(np.ascontiguousarray(rows)).to(self.tokens.device, non_blocking=True)
        place = torch.arange(max(lengths), device=self.tokens.device)
        start, end = self.starts[row, None], self.starts[row + 1, None]
        index = (start + place).clamp(max=self.tokens.numel() - 1)
        tokens = (self.tokens[index].int() + self.shift).masked_fill(start + place >= end, 0)
        return Batch(tokens, lengths, self.labels[row])

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(self.lengths[rows], kind="stable")  # rows of like length together: little padding
        for first in range(0, len(order), size):
            places = order[first : first + size]
            yield places, self.batch(rows[places])


class Classification(Task):
    """Cross-entropy and accuracy; `shift` is added to every byte, so that 0 can mean padding and nothing else."""

    def shift(self, protocol: Protocol) -> int:
        return 0

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> TokenFeed:
        return TokenFeed(split, device, self.shift(protocol))

    def loss(self, model: nn.Module, batch: Batch) -> StepResult:
        logits = model(batch.tokens, batch.lengths)
        loss = F.cross_entropy(logits.float(), batch.label)
        right = (logits.detach().argmax(dim=-1) == batch.label).sum()
        return StepResult(loss, {"loss": loss.detach() * len(batch.lengths), "accuracy": right}, len(batch.lengths))

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
