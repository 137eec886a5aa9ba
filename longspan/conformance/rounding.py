"""What half precision may change: the one rule by which outputs in bfloat16 and float16 are compared with exact ones.

Both precisions start from the same numbers, inputs rounded to bfloat16. What is left is the rounding inside. A
mechanism that chooses (the best keys, a bucket) may choose differently after any rounding, in float32 too: its error
may be twice as large as the change of its exact output when weights and inputs move by one rounding. Few such moves
change a choice, so several are tried.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.subject import Batch, Subject

COARSE = 5e-2  # of the norm of the output: bfloat16 keeps 8 bits, and a layer rounds about five times
DRAWS = 8  # of the direction in which each number moves
CHOICES = 2  # times the change that one rounding makes: projections and scores are rounded one after the other


def beyond_rounding(
    subject: Subject, layer: Attention, batch: Batch, *, found: Tensor, exact: Tensor, dtype: torch.dtype
) -> tuple[float, float | None]:
    """How far `found` in `dtype` is from `exact`, the output of `layer` for `batch`; if too far, what is explained.

    Both are in the norm of the output over real tokens.
    """
    apart = _apart(found, exact)
    if apart <= COARSE:
        return apart, None
    explained = CHOICES * _sensitivity(subject, layer, batch, exact, dtype)
    return apart, None if apart <= explained else explained


def rounded(u: Tensor) -> Tensor:
    return u.to(torch.bfloat16).to(u.dtype)


def change(batch: Batch, how: Callable[[Tensor], Tensor]) -> Batch:
    return replace(batch, **{name: how(u) for name, u in batch.leaves().items()})


def change_weights(layer: Attention, how: Callable[[Tensor], Tensor]) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(how(parameter))


def _sensitivity(subject: Subject, layer: Attention, batch: Batch, exact: Tensor, dtype: torch.dtype) -> float:
    """How far the exact output moves at most when each weight and input moves by one rounding, up or down."""
    weights, farthest = {name: value.clone() for name, value in layer.state_dict().items()}, 0.0
    moved = one_rounding(dtype, subject.seed)
    for _ in range(DRAWS):
        change_weights(layer, moved)
        with torch.no_grad():
            found = subject.run(layer, change(batch, moved), bfloat16=False)[batch.mask]
        layer.load_state_dict(weights)
        farthest = max(farthest, _apart(found, exact))
    return farthest


def one_rounding(dtype: torch.dtype, seed: int) -> Callable[[Tensor], Tensor]:
    """Moves each number by half of the distance to its neighbour in `dtype`, up or down, as drawn."""
    signs, rounding = torch.Generator().manual_seed(seed), torch.finfo(dtype).eps / 2

    def moved(u: Tensor) -> Tensor:
        up = torch.randint(2, u.shape, generator=signs).to(u.device, u.dtype)
        return u * (1 + rounding * (2 * up - 1))

    return moved


def _apart(found: Tensor, exact: Tensor) -> float:
    size = float(exact.norm())
    gap = float((found.to(exact.dtype) - exact).norm())
    return gap / size if size else gap
