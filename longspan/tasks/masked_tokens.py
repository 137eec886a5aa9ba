"""Masked tokens: a stage before a task, on the same rows without their labels (arXiv:2310.02980, self-pretraining).

Each token is hidden with the recipe's probability `masked`; the network predicts what was hidden, by cross-entropy over
all symbols (over 256 intensities where pixels are numbers). Serves any mechanism. Departs from the paper in: pixels of
Image are predicted by cross-entropy, not by their distance.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier
from longspan.backbones.masked_encoder import MaskedEncoder
from longspan.backbones.slots import AttentionFactory
from longspan.tasks.base import Evaluation, Feed, Protocol, StepResult, Task, TaskMeta


class MaskedTokens(Task):
    """The stage before `task`, which uses its data and network."""

    meta = TaskMeta(
        title="Masked tokens",
        version=1,
        paper="arXiv:2310.02980",
        score="accuracy",
        higher_is_better=True,
        backbone="encoder_classifier",
        slots={"encoder": Pattern.NONCAUSAL_SELF},
    )
    protocols = {}

    def __init__(self, task: Task, masked: float):
        self.task, self.masked = task, masked

    def longest(self, protocol: Protocol) -> int:
        return self.task.longest(protocol)

    def model(self, attention: AttentionFactory, protocol: Protocol) -> nn.Module:
        return self.around(self.task.model(attention, protocol))

    def around(self, model: nn.Module) -> MaskedEncoder:
        assert isinstance(model, EncoderClassifier)
        return MaskedEncoder(model)

    def feed(self, split: Any, protocol: Protocol, device: Any) -> Feed:
        return self.task.feed(split, protocol, device)

    def loss(self, model: nn.Module, batch: Any, *, smoothing: float = 0.0) -> StepResult:
        covered = torch.rand(batch.tokens.shape, device=batch.tokens.device) < self.masked
        losses, right, asked = self._answers(model, batch, covered)
        count = asked.sum()
        loss = losses.sum() / count.clamp(min=1)
        return StepResult(loss, {"loss": loss.detach() * count, "accuracy": right.sum()}, count)

    def evaluate(self, model: nn.Module, feed: Feed, rows: np.ndarray, batch_size: int) -> Evaluation:
        """Over the same hidden tokens at every evaluation."""
        loss, accuracy, count = 0.0, 0.0, 0
        for places, batch in feed.in_batches(rows, batch_size):
            chance = torch.Generator().manual_seed(int(rows[places[0]]))
            covered = (torch.rand(batch.tokens.shape, generator=chance) < self.masked).to(batch.tokens.device)
            losses, right, asked = self._answers(model, batch, covered)
            loss, accuracy, count = loss + losses.sum().item(), accuracy + right.sum().item(), count + int(asked.sum())
        metrics = {"accuracy": accuracy / max(1, count), "loss": loss / max(1, count)}
        return Evaluation(metrics, max(1, count), {"row": rows})

    def chance(self, split: Any) -> None:
        return None

    def _answers(self, model: nn.Module, batch: Any, covered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss and correctness of each token, both 0 where nothing is to be predicted, and the mask of what is."""
        logits, tokens, asked = model(batch.tokens, batch.lengths, covered)
        logits, tokens, asked = logits.flatten(0, -2).float(), tokens.flatten(), asked.flatten()
        losses = F.cross_entropy(logits, tokens, reduction="none") * asked
        return losses, (logits.argmax(dim=-1) == tokens) & asked, asked
