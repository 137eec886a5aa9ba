"""A task whose loss has three terms with their own counts, whose score is computed from all predictions, and more.

It reads the rows of ListOps: predict each token, predict the even ones again (a row may have none), and keep a state
of each row small. Validation computes less than the evaluation, and checkpoints are chosen by another metric.
"""

import dataclasses

import numpy as np
import torch
from torch import nn

from longspan.tasks.base import Evaluation, StepResult
from longspan.tasks.token_feed import TokenFeed
from tests.training.copying import Copying


class Parted(Copying):
    meta = dataclasses.replace(Copying.meta, score="spread", selected_by="nats_a_row", selected_higher=False)

    def feed(self, split, protocol, device):
        return TokenFeed(split, device)

    def counts(self, batch):
        tokens = batch.tokens.long()
        return {"tokens": (tokens > 0).sum(), "even": self._even(tokens).sum(), "rows": len(tokens)}

    def loss(self, model: nn.Module, batch, *, smoothing: float = 0.0) -> StepResult:
        each, _ = self._each(model, batch, smoothing)
        counts, even = self.counts(batch), self._even(batch.tokens.long())
        means = {
            "tokens": each.sum() / counts["tokens"],
            "even": (each * even).sum() / counts["even"].clamp(min=1),
            "rows": 1e-3 * each.sum(dim=1).square().mean(),
        }
        loss = torch.stack(list(means.values())).sum()
        terms = {name: (mean, counts[name]) for name, mean in means.items()}
        return StepResult(loss, {"loss": each.detach().sum()}, len(each), terms)

    def validate(self, model, feed, rows, batch_size):
        whole = super().evaluate(model, feed, rows, batch_size)
        nats = whole.predictions["nats"]
        return Evaluation({"nats_a_row": float(nats.astype(np.float64).mean())}, len(rows), {})

    def evaluate(self, model, feed, rows, batch_size):
        whole = super().evaluate(model, feed, rows, batch_size)
        predictions = whole.predictions | {"category": rows % 3}
        samples = {"kind": np.array("numbers"), "first": np.asarray(whole.predictions["nats"][:1])}
        return Evaluation({"loss": whole.metrics["loss"]}, whole.count, predictions, samples=samples)

    def derived(self, means):
        return {}

    def summary(self, predictions):
        assert np.array_equal(predictions["row"], np.arange(len(predictions["row"])))
        own = [predictions["nats"][predictions["category"] == one].mean() for one in np.unique(predictions["category"])]
        return {"spread": float(np.mean(own, dtype=np.float64))}

    def chance(self, split):
        return None

    @staticmethod
    def _even(tokens):
        return (tokens > 0) & (tokens % 4 == 0)
