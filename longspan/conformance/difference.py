"""How far two tensors are apart, as one figure and in words."""

import math

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def difference(found: Shaped[Tensor, "..."], expected: Shaped[Tensor, "..."]) -> float:
    """The largest absolute difference over the largest expected magnitude; infinite when something is not finite.

    >>> difference(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 4.0]))
    0.25
    """
    if found.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    gap, size = (found - expected).abs().max().item(), expected.abs().max().item()
    return gap / (size or 1.0) if math.isfinite(gap) else math.inf


def where_apart(
    found: Shaped[Tensor, "b n d"], expected: Shaped[Tensor, "b n d"], among: Bool[Tensor, "b n"] | None = None
) -> str:
    """The row and position at which two outputs differ most."""
    gap = (found.detach().double() - expected.detach().double()).abs().amax(dim=-1).nan_to_num(nan=math.inf)
    if among is not None:
        gap = gap.masked_fill(~among, -1)
    row, position = divmod(int(gap.argmax()), gap.shape[1])
    return f"row {row}, position {position}"


def finite(*tensors: Tensor | None) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors if t is not None)


def spell(figure: float) -> str:
    """A figure short enough for a table."""
    return f"{figure:.1e}" if math.isfinite(figure) else "not finite"
