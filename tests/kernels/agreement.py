"""A fast path against its reference: outputs and gradients for the same leaves, the reference in double precision."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


def gradients(outputs: Tensor | Sequence[Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a fixed random weighted sum of all outputs; the weights are exact in every precision."""
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    weights = [_weights(y.shape, y.dtype, y.device, place) for place, y in enumerate(outputs)]
    return torch.autograd.grad(outputs, leaves, weights)


@lru_cache(maxsize=16)
def _weights(shape: torch.Size, dtype: torch.dtype, device: torch.device, place: int) -> Tensor:
    """Cached, because nothing can be copied to a GPU during CUDA graph capture."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1 + place)).bfloat16().to(device, dtype)


def exact(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in leaves]


def outcome(compute: Callable[..., Any], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Outputs and gradients."""
    y = compute(*leaves)
    return (y, *gradients(y, leaves)) if isinstance(y, Tensor) else (*y, *gradients(y, leaves))


def assert_agrees(
    fast: Callable[..., Any],
    reference: Callable[..., Any],
    leaves: Sequence[Tensor],
    *,
    atol: float,
    rtol: float,
    least: float | None = None,
) -> None:
    """Each output and gradient of `fast` matches `reference`; a single output has the dtype of the first leaf.

    With `least`, errors in a gradient are relative to its largest entry, or to `least` if all are smaller: entries that
    cancel carry the rounding errors of larger terms.
    """
    leaves = [x.detach().requires_grad_() for x in leaves]

    def as_precise(*leaves):
        y = fast(*leaves)
        assert not isinstance(y, Tensor) or y.dtype == leaves[0].dtype
        return y

    found, expected = outcome(as_precise, leaves), outcome(reference, exact(leaves))
    outputs = len(found) - len(leaves)
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        size = 1.0 if least is None or place < outputs else max(least, float(other.abs().max()))
        torch.testing.assert_close(one.double(), other, atol=atol * size, rtol=rtol)


def by_triton(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> list[str]:
    """Make functions of a module use their kernels from now on, even on a CPU; returns a list that collects calls."""
    calls = []

    def through(name, function):
        def call(*args, **options):
            calls.append(name)
            return function(*args, **options, impl="triton")

        return call

    for name in names:
        monkeypatch.setattr(module, name, through(name, getattr(module, name)))
    return calls
