"""Auxiliary losses: the terms that layers add to the loss of a training step, collected by the training loop.

    with collecting(model) as layers:
        loss = task_loss(model(x))
        loss = loss + auxiliary_loss(layers)

A mechanism declares `auxiliary_loss=True` and calls `y = self.with_auxiliary(y, term)`. Terms are kept only inside
`collecting`, and never in evaluation.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def layers_with_auxiliary(model: nn.Module) -> list[Any]:
    """The layers of a network that declare an auxiliary loss."""
    return [module for module in model.modules() if getattr(getattr(module, "meta", None), "auxiliary_loss", False)]


@contextlib.contextmanager
def collecting(model: nn.Module) -> Iterator[Sequence[Any]]:
    """Inside this context the layers of a network keep their terms."""
    layers = layers_with_auxiliary(model)
    for layer in layers:
        layer.auxiliary_terms = []
    try:
        yield layers
    finally:
        for layer in layers:
            layer.auxiliary_terms = None


def auxiliary_loss(layers: Sequence[Any]) -> Float[Tensor, ""] | float:
    """The sum over layers, each of which has already weighted its own term; 0 if there are none."""
    terms = [term for layer in layers if (term := layer.auxiliary_loss()) is not None]
    return torch.stack(terms).sum() if terms else 0.0


def tied(y: Float[Tensor, "..."], term: Float[Tensor, ""]) -> Float[Tensor, "..."]:
    """y unchanged, with `term` attached to its autograd graph by a gradient of 0.

    Distributed training searches the graph of the output for used parameters; those that only the term uses would be
    taken for unused.
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
