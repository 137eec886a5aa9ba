"""Activation checkpointing: a layer stores only its inputs and is recomputed in the backward pass.

    checkpoint_layers(model)      # outputs, gradients and everything the layers count stay the same

The recomputation sees the random numbers and buffers of the first pass, and leaves buffers and auxiliary losses as that
pass left them: running statistics and centroids are updated once.
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
    """Recompute every layer that has a slot in the backward pass."""
    for layer in layers_of(model):
        if "forward" not in vars(layer):  # once is enough
            layer.forward = _Twice(layer, layer.forward)


class _Twice:
    """The forward of a layer whose intermediate activations are not stored."""

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
    """Restore the buffers from before the first pass; auxiliary loss terms are computed again and dropped."""
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
    """The persistent buffers of a layer, which training may update."""
    state = layer.state_dict(keep_vars=True)
    return [buffer for name, buffer in layer.named_buffers() if name in state]


def _put(values: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)  # through `data`, so that autograd does not take saved tensors for modified
