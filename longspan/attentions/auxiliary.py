"""Auxiliary losses: the terms that layers add to the loss of a training step, collected by whoever descends it.

    with collecting(model) as layers:
        loss = task_loss(model(x))
        loss = loss + auxiliary_loss(layers)

A mechanism declares `auxiliary_loss=True` and calls `y = self.with_auxiliary(y, term)`. Nothing is kept while nobody
collects, and nothing in evaluation.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def layers_with_auxiliary(model: nn.Module) -> list[Any]:
    """The layers of a network that declare a term of their own."""
    return [module for module in model.modules() if getattr(getattr(module, "meta", None), "auxiliary_loss", False)]


@contextlib.contextmanager
def collecting(model: nn.Module) -> Iterator[Sequence[Any]]:
    """Let the layers of a network keep their terms until the end of this context."""
    layers = layers_with_auxiliary(model)
    for layer in layers:
        layer.auxiliary_terms = []
    try:
        yield layers
    finally:
        for layer in layers:
            layer.auxiliary_terms = None


def auxiliary_loss(layers: Sequence[Any]) -> Float[Tensor, ""] | float:
    """The sum over layers, each of which has already weighted its own; 0 where there is none."""
    terms = [term for layer in layers if (term := layer.auxiliary_loss()) is not None]
    return torch.stack(terms).sum() if terms else 0.0


def tied(y: Float[Tensor, "..."], term: Float[Tensor, ""]) -> Float[Tensor, "..."]:
    """The same y, from which `term` can be reached in the graph, with a gradient of 0.

    Several processes look from the output for parameters in use; those of the term alone would be taken for unused.
    """
    return _Tied.apply(y, term)  # type: ignore[return-value]


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(term.detach())
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], torch.zeros_like(ctx.saved_tensors[0])
