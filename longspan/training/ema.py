"""Exponential moving average of the weights, for evaluation.

mean <- decay * mean + (1 - decay) * weights      after every step, with a smaller decay in the first steps

The running statistics of batch norms are averaged like weights: those of the last batches do not fit averaged weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from longspan.training.sharding import local, share_as


class RunningAverage:
    """Keeps the mean of a model's parameters; with decay 0 it does nothing at all."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._weights: list[Tensor] = []
        if decay:
            self._weights = [*(p for p in model.parameters() if p.requires_grad), *_statistics(model)]
        self.mean = [p.detach().clone() for p in self._weights]

    def update(self, step: int) -> None:
        """Add the weights after `step` steps, counted from 1."""
        decay = min(self.decay, step / (step + 10))
        with torch.no_grad():
            if self.mean:
                torch._foreach_lerp_(list(map(local, self.mean)), list(map(local, self._weights)), 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    def load(self, mean: list[Tensor]) -> None:
        for mine, saved in zip(self.mean, mean, strict=True):
            mine.copy_(share_as(saved, mine))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside the block and its own again after it."""
        own = [p.detach().clone() for p in self._weights]
        self._put(self.mean)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._weights, values, strict=True):
            parameter.data.copy_(value)


def _statistics(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            yield module.get_buffer("running_mean")
            yield module.get_buffer("running_var")
