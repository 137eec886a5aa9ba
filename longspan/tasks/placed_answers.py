"""Questions at some places of a row: what the diagnostic tasks share, whose network predicts only at these places.

GPT-2 blocks with causal self slots, unless a task has another network. Rows of the test are of one or several kinds
(lengths, numbers of pairs, depths); the score is the mean over kinds of the mean over the rows of each, and the card
has every kind by itself as `accuracy_<kind>`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from longspan import datasets
from longspan.attentions import Pattern
from longspan.backbones.gpt2 import GPT2
from longspan.backbones.slots import AttentionFactory
from longspan.datasets.base import Split
from longspan.datasets.placed_answers import PlacedAnswers
from longspan.metrics.point_cloud import category_mean
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task, TaskMeta

PADDING = -1


@dataclass(frozen=True)
class Batch:
    """Rows with the places where something is asked and the answers there; an answer of -1 is padding."""

    tokens: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]
    places: Int[Tensor, "b k"]
    answers: Int[Tensor, "b k"]
    count: int  # of answers


class AnswerFeed(Feed):
    """A split on the device; a batch is as wide as its longest row."""

    def __init__(self, split: Split, device: torch.device | str, kinds: list[str]):
        self.device, self.lengths = torch.device(device), split.lengths // 2
        self.kinds = np.array(kinds)[np.asarray(split.labels)]
        flat = np.asarray(split.tokens)
        self.tokens = torch.tensor(flat if flat.dtype == np.uint8 else flat.astype(np.int32), device=device)
        self.starts = torch.tensor(split.starts, device=device)
        asked = [np.flatnonzero(flat[stop - n : stop]) for stop, n in zip(split.stops, self.lengths, strict=True)]
        self.counts = np.array([len(places) for places in asked])
        self.places = np.zeros((len(asked), max(self.counts, default=0)), np.int64)
        self.answers = np.full_like(self.places, PADDING)
        for row, places in enumerate(asked):
            self.places[row, : len(places)] = places
            self.answers[row, : len(places)] = flat[split.starts[row] + self.lengths[row] + places]

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> Batch:
        length = self._on(self.lengths[rows])[:, None]
        place = torch.arange(int(self.lengths[rows].max()), device=self.device)
        real = place < length
        index = self.starts[self._on(rows)][:, None] + torch.where(real, place, 0)
        tokens = self.tokens[index].int().masked_fill(~real, 0)
        counts = self.counts[rows]
        places, answers = (self._on(array[rows, : counts.max()]) for array in (self.places, self.answers))
        return Batch(tokens, real, places, answers, int(counts.sum()))

    def in_batches(self, rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
        order = np.argsort(self.lengths[rows], kind="stable")
        for first in range(0, len(order), size):
            places = order[first : first + size]
            yield places, self.batch(rows[places])

    def _on(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


def diagnostic(title: str, paper: str) -> TaskMeta:
    """What the diagnostic tasks have in common."""
    return TaskMeta(
        title=title,
        version=1,
        paper=paper,
        score="accuracy",
        higher_is_better=True,
        backbone="gpt2",
        slots={"decoder": Pattern.CAUSAL_SELF},
    )


class PlacedAnswersTask(Task):
    """Cross-entropy and accuracy at the places where something is asked."""

    takes_network = True
    whole_rows: ClassVar[bool] = False  # a row counts as right only if all its answers are

    def longest(self, protocol: Protocol) -> int:
        return protocol.data.longest

    def vocabulary(self, protocol: Protocol) -> int:
        return datasets.get(self.dataset).meta.vocabulary

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        vocabulary, length = self.vocabulary(protocol), self.longest(protocol)
        return (self.network or GPT2)(attention, protocol.model, vocabulary=vocabulary, length=length)

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> AnswerFeed:
        dataset = cast(PlacedAnswers, datasets.get(self.dataset))
        return AnswerFeed(split, device, dataset.names(protocol.data))

    def made_up(self, protocol: Protocol, count: int) -> Split:
        dataset = cast(PlacedAnswers, datasets.get(self.dataset))
        kind = max(dataset.kinds(protocol.data, "train"), key=lambda kind: kind.settings[0])
        rows = np.concatenate(dataset.draw(protocol.data, kind, count, np.random.default_rng(0)), axis=1)
        edges = np.arange(count + 1) * rows.shape[1]
        return Split.of_rows(rows.reshape(-1).astype(dataset.dtype), edges, np.zeros(count, np.uint8))

    def answers(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits at the places of a batch, [b k v]."""
        return model(batch.tokens, at=batch.places, mask=batch.real)

    def loss(self, model: nn.Module, batch: Batch, *, smoothing: float = 0.0) -> StepResult:
        logits = self.answers(model, batch).float().flatten(0, 1)
        answers = batch.answers.flatten()
        loss = F.cross_entropy(logits, answers, ignore_index=PADDING, label_smoothing=smoothing)
        right = (logits.detach().argmax(dim=-1) == answers).sum()
        return StepResult(loss, {"loss": loss.detach() * batch.count, "accuracy": right}, batch.count)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        assert isinstance(feed, AnswerFeed)
        right, nats = np.zeros(len(rows)), np.zeros(len(rows))
        for places, batch in feed.in_batches(rows, batch_size):
            logits = self.answers(model, batch).float()
            hit = logits.argmax(dim=-1) == batch.answers
            right[places] = hit.sum(dim=1).cpu().numpy()
            each = F.cross_entropy(logits.mT, batch.answers, ignore_index=PADDING, reduction="none")
            nats[places] = each.double().sum(dim=1).cpu().numpy()
        asked = feed.counts[rows]
        accuracy = (right == asked).astype(float) if self.whole_rows else right / asked
        predictions = {"row": rows, "accuracy": accuracy, "category": feed.kinds[rows]}
        return Evaluation({"loss": float((nats / asked).mean())}, len(rows), predictions)

    def summary(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The mean over kinds, and each kind by itself where there are several."""
        accuracy, category = predictions["accuracy"], predictions["category"]
        names, number = np.unique(category, return_inverse=True)
        within = {f"accuracy_{name}": float(accuracy[number == i].mean()) for i, name in enumerate(names)}
        return {"accuracy": category_mean(accuracy, number)} | (within if len(within) > 1 else {})
