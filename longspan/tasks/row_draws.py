"""Random numbers for the rows of a batch: those that one process would draw, however many share the batch.

    with dealt(rank, processes, seed):      # the training loop, around a feed's batch and a task's loss
        level = for_rows(lambda n: torch.rand(n, device=device), len(batch))

All processes draw for the rows of the whole batch, from a separate random stream that dropout does not touch, and each
keeps those of its rows. The rows of process r are r, r + processes, and so on, in every part of a batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class _Deal:
    """The place of a process among those that share a batch, and the state of their common random stream."""

    def __init__(self, rank: int, processes: int, seed: int):
        self.rank, self.processes, self.seed = rank, processes, seed
        self.states: list[Tensor] = []

    def draw(self, draw: Callable[[int], Tensor], count: int) -> Tensor:
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):
            if self.states:
                torch.set_rng_state(self.states[0])
                for device, state in zip(devices, self.states[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            else:
                torch.manual_seed(self.seed)
            whole = draw(count * self.processes)
            self.states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
        return whole[self.rank :: self.processes]


_deal: ContextVar[_Deal | None] = ContextVar("deal", default=None)


@contextmanager
def dealt(rank: int, processes: int, seed: int) -> Iterator[None]:
    """Inside the block, rows are shared by this many processes; a single one draws as usual."""
    token = _deal.set(_Deal(rank, processes, seed) if processes > 1 else None)
    try:
        yield
    finally:
        _deal.reset(token)


def for_rows(draw: Callable[[int], Tensor], count: int) -> Tensor:
    """What `draw(n)` draws for the n rows of a batch, of which `count` are those of this process."""
    deal = _deal.get()
    return draw(count) if deal is None else deal.draw(draw, count)
