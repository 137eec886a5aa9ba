"""Context parallelism: every process has a part of the tokens of each row, process r the r-th part of equal length.

    with shared(rank, processes):
        first_token(n)       # the place in its row of the first of n tokens here
        all_tokens(k)        # the keys of all processes, [b h n c] -> [b h processes*n c]
        sum_before(state)    # the sum of the states of the processes before this one

Gradients flow through both to the process that holds the tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

_place: tuple[int, int] | None = None  # a plain variable, which torch.compile can read


@contextmanager
def shared(rank: int, processes: int) -> Iterator[None]:
    """Within the block rows are parts of rows that `processes` processes share."""
    global _place
    before, _place = _place, (rank, processes) if processes > 1 else None
    try:
        yield
    finally:
        _place = before


def is_shared() -> bool:
    return _place is not None


def first_token(length: int) -> int:
    """The place in the whole row of the first local token; 0 where rows are whole."""
    return 0 if _place is None else _place[0] * length


def all_tokens(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h m c"]:
    """The tokens of all processes, in the order of the row."""
    return _AllTokens.apply(x, *_where())  # type: ignore[return-value]


def sum_before(state: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The sum of the states of the processes before this one; 0 in the first."""
    return _SumBefore.apply(state, *_where())  # type: ignore[return-value]


def _where() -> tuple[int, int]:
    assert _place is not None, "rows are whole here"
    return _place


def _gathered(x: Tensor, processes: int) -> list[Tensor]:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(processes)]
    dist.all_gather(parts, x.contiguous())
    return parts


class _AllTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int, processes: int) -> Tensor:
        ctx.rank, ctx.length = rank, x.shape[2]
        return torch.cat(_gathered(x, processes), dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[:, :, ctx.rank * ctx.length : (ctx.rank + 1) * ctx.length], None, None


class _SumBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, rank: int, processes: int) -> Tensor:
        ctx.rank, ctx.processes = rank, processes
        return sum(_gathered(state, processes)[:rank], torch.zeros_like(state))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        parts = _gathered(gradients[0], ctx.processes)
        return sum(parts[ctx.rank + 1 :], torch.zeros_like(parts[0])), None, None
