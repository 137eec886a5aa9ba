"""A task with three patterns, a score that is not a fraction and counts that differ between parts: repeat the row.

It reads the rows of ListOps and learns to predict each token from the whole row and the tokens before it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from longspan.attentions import Pattern
from longspan.datasets import listops
from longspan.tasks.base import Evaluation, Feed, Protocol, Recipe, StepResult, Task, TaskMeta
from longspan.tasks.token_feed import TokenFeed
from tests.backbones.toy import Toy


@dataclass(frozen=True)
class Sizes:
    dim: int = 8
    encoder: str = "softmax"  # the protocol's mechanism in the encoder


SMOKE = Protocol(
    data=listops.Data(train=40, valid=6, test=7, longer_than=5, shorter_than=20, max_depth=5, max_args=8),
    model=Sizes(),
    recipe=Recipe(steps=12, batch_size=4, learning_rate=0.01, warmup=2, schedule="linear", evaluate_every=5),
)


class Copying(Task):
    meta = TaskMeta(
        title="Copying",
        version=1,
        paper="none",
        score="perplexity",
        higher_is_better=False,
        backbone="toy",
        slots={"cross": Pattern.CAUSAL_CROSS, "encoder": Pattern.NONCAUSAL_SELF, "decoder": Pattern.CAUSAL_SELF},
        unit="plain",
    )
    dataset = "listops"
    protocols = {("longspan", "smoke"): SMOKE}

    def longest(self, protocol):
        return protocol.data.shorter_than

    def others(self, protocol):
        return {Pattern.NONCAUSAL_SELF: getattr(protocol.model, "encoder", "softmax")}

    def model(self, attention, protocol):
        return Toy(attention, protocol.model.dim)

    def feed(self, split, protocol, device) -> Feed:
        return TokenFeed(split, device)

    def loss(self, model: nn.Module, batch, *, smoothing: float = 0.0) -> StepResult:
        each, real = self._each(model, batch, smoothing)
        count = real.sum()  # known only on the device
        loss = each.sum() / count
        return StepResult(loss, {"loss": each.detach().sum()}, count)

    def _each(self, model, batch, smoothing=0.0):
        """The loss of every token (0 at padding), and which tokens are real."""
        tokens = batch.tokens.long()
        real = tokens > 0
        logits = model(tokens, F.pad(tokens, (1, 0))[:, :-1])
        loss = F.cross_entropy(logits.mT.float(), tokens, reduction="none", label_smoothing=smoothing)
        return loss * real, real

    def evaluate(self, model, feed, rows, batch_size) -> Evaluation:
        total, tokens = torch.zeros(len(rows)), torch.zeros(len(rows))
        for places, batch in feed.in_batches(rows, batch_size):
            each, real = self._each(model, batch)
            total[places], tokens[places] = each.sum(dim=1).cpu(), real.sum(dim=1).float().cpu()
        count = int(tokens.sum())
        means = {"loss": float(total.double().sum()) / count}
        predictions = {"row": rows, "nats": total.numpy(), "tokens": tokens.numpy().astype(np.int64)}
        return Evaluation(means | self.derived(means), count, predictions)

    def derived(self, means):
        return {"perplexity": math.exp(means["loss"])}

    def chance(self, split):
        """The perplexity of the token frequencies of the split."""
        counts = np.bincount(np.concatenate([split.example(i) for i in range(len(split))]))
        shares = counts[counts > 0] / counts.sum()
        return float(np.exp(-(shares * np.log(shares)).sum()))
