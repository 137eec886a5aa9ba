"""Activation checkpointing: a layer keeps only what it was given, and is computed again in the backward pass.

    checkpoint_layers(model)      # outputs, gradients and everything the layers count stay the same

The second computation sees the random numbers, the buffers and the auxiliary losses of the first, and leaves the
buffers as the first left them: running statistics and centroids are moved once.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attentions.auxiliary import layers_with_auxiliary
from longspan.backbones.slots import layers_of


def checkpoint_layers(model: nn.Module) -> None:
    """Compute every layer that has a slot again in the backward pass."""
    for layer in layers_of(model):
        if "forward" not in vars(layer):  # once is enough
            layer.forward = _Twice(layer, layer.forward)


class _Twice:
    """The forward of a layer whose intermediate results are not kept."""

    def __init__(self, layer: nn.Module, method: Callable[..., Any]):
        self.layer, self.method = layer, method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.method(*args, **kwargs)
        before = [(buffer, buffer.clone()) for buffer in _moving(self.layer)]
        collecting = [layer for layer in layers_with_auxiliary(self.layer) if layer.auxiliary_terms is not None]

        def contexts() -> tuple[Any, Any]:
            return contextlib.nullcontext(), _again(before, collecting)

        return checkpoint(self.method, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextlib.contextmanager
def _again(before: list[tuple[Tensor, Tensor]], collecting: list[Any]) -> Iterator[None]:
    """Buffers as they were before the first computation; terms of the loss are made again, and dropped."""
    after, terms = [(buffer, buffer.clone()) for buffer, _ in before], [layer.auxiliary_terms for layer in collecting]
    _put(before)
    for layer in collecting:
        layer.auxiliary_terms = []
    try:
        yield
    finally:
        _put(after)
        for layer, kept in zip(collecting, terms, strict=True):
            layer.auxiliary_terms = kept


def _moving(layer: nn.Module) -> list[Tensor]:
    """The buffers that belong to the state of a layer, which training may move."""
    state = layer.state_dict(keep_vars=True)
    return [buffer for name, buffer in layer.named_buffers() if name in state]


def _put(values: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)  # through `data`: what the first pass saved is not taken for changed
