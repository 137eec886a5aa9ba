"""Surrogate gradients: how gradients are checked where the paper defines them, and calculus does not.

Such a mechanism declares `surrogate_gradient` and has a method `surrogate` with the signature of `attend` (`forward`,
if it is not headwise): a function in plain PyTorch whose derivative is the gradient that the paper defines; its value
does not matter. YOSO's, for instance, treats its weights as constants and adds their bound times q k^T.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from longspan.attentions import Attention, HeadwiseAttention
from longspan.conformance.difference import spell
from longspan.conformance.subject import Batch, Subject
from longspan.core.errors import PluginError


def gradients_of(subject: Subject, layer: Attention, batch: Batch) -> dict[str, Tensor | None]:
    """The gradient of a fixed random projection of the real outputs, for every input and parameter by name."""
    batch = batch.requiring_grad()
    y = subject.run(layer, batch)
    direction = subject.noise(*y.shape, draw="direction", dtype=y.dtype)
    if batch.mask is not None:
        direction = direction * batch.mask[..., None]
    named = {**batch.leaves(), **{n: p for n, p in layer.named_parameters() if p.requires_grad}}
    gradients = torch.autograd.grad((y * direction).sum(), list(named.values()), allow_unused=True)
    return dict(zip(named, gradients, strict=True))


def by_definition(layer: Attention) -> Attention:
    """A layer with the same outputs, whose gradients are those of its surrogate."""
    if not hasattr(layer, "surrogate"):
        raise PluginError(
            f"{type(layer).__name__} declares a surrogate gradient but has no method surrogate; write one with the "
            "signature of attend, whose derivative is the gradient the paper defines."
        )
    twin = copy.deepcopy(layer)
    name = "attend" if isinstance(twin, HeadwiseAttention) else "forward"
    value, surrogate = (getattr(twin, method) for method in (name, "surrogate"))

    def defined(*inputs: Any, **masks: Any) -> Tensor:
        s = surrogate(*inputs, **masks)
        if (node := _with_own_backward(s)) is not None:
            raise PluginError(
                f"The surrogate of {type(layer).__name__} has a backward of its own ({node}), which would be compared "
                "with itself; write it in plain PyTorch, whose derivative is the gradient the paper defines."
            )
        return value(*inputs, **masks).detach() + (s - s.detach())

    setattr(twin, name, defined)
    return twin


def _with_own_backward(s: Tensor) -> str | None:
    """The name of a custom autograd function or operator in the graph that computed s; None where there is none."""
    met: set[Any] = set()
    waiting = [s.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        if isinstance(node, BackwardCFunction):
            return node.name()
        met.add(node)
        waiting.extend(after for after, _ in node.next_functions)
    return None


def apart_from_definition(subject: Subject, layer: Attention, batch: Batch) -> tuple[float, str]:
    """The largest difference of a gradient from its definition, relative to the largest gradient, and its name."""
    found, expected = (gradients_of(subject, one, batch) for one in (layer, by_definition(layer)))
    size = max((float(g.abs().max()) for g in expected.values() if g is not None), default=0.0) or 1.0
    worst, whose = 0.0, "x"
    for name, gradient in found.items():
        other = expected[name]
        gaps = [g for g in (gradient, other) if g is not None]
        gap = gaps[0] - gaps[1] if len(gaps) == 2 else gaps[0] if gaps else None  # a missing one counts as 0
        if gap is not None and not (apart := float(gap.abs().max()) / size) <= worst:
            worst, whose = apart, name
    return worst, whose


def compared(subject: Subject, layer: Attention, batch: Batch) -> str | None:
    """What is wrong with the gradients, in a sentence; None where they are as defined."""
    apart, whose = apart_from_definition(subject, layer, batch)
    if apart <= subject.tolerance:
        return None
    return f"the gradient of {whose} differs from its own definition by {spell(apart)} at length {batch.x.shape[1]}"
