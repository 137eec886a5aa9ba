"""Sequence classification: what every task with tokens in and one label out shares."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier
from longspan.backbones.slots import AttentionFactory
from longspan.core.errors import UsageError
from longspan.datasets.base import Split
from longspan.metrics.classification import accuracy, majority_rate
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task, TaskMeta
from longspan.tasks.lit_feed import LitFeed
from longspan.tasks.masked_tokens import MaskedTokens
from longspan.tasks.token_feed import Batch, TokenFeed


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

    `shift` is added to every byte, so that 0 can mean padding and nothing else; `symbols` is the number of byte values.
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
        if protocol.model.zero_rule == "drop" and not self.pixels:
            raise UsageError(f"{self.name} has no black pixels to leave out; choose another zero_rule than drop.")
        ends = protocol.model.end_token
        vocabulary, length = self._end(protocol) + ends, self.longest(protocol) + ends
        network = self.network or EncoderClassifier
        return network(attention, protocol.model, vocabulary=vocabulary, classes=self.classes, length=length)

    def feed(self, split: Split, protocol: Protocol, device: torch.device | str) -> Feed:
        end = self._end(protocol) if protocol.model.end_token else None
        feed = TokenFeed(split, device, self.shift(protocol), end)
        return LitFeed.of(split, feed) if self.pixels and protocol.model.zero_rule == "drop" else feed

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
