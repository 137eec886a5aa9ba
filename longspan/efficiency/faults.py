"""What went wrong with a point, as its status and a sentence, and whether the device survived it."""

from collections.abc import Iterator

import torch

from longspan.core.meter import synchronize
from longspan.efficiency.memory import is_out_of_memory


def status_of(error: BaseException) -> tuple[str, str]:
    """`oom` where memory ran out, else `fail`, and the first line of the error message."""
    line = (str(error).splitlines() or ["no message"])[0]
    return "oom" if any(map(is_out_of_memory, _chain(error))) else "fail", f"{type(error).__name__}: {line}"[:300]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: the error that ends a failed graph capture hides why it failed."""
    while error is not None:
        yield error
        error = error.__context__


def is_sound(device: str) -> bool:
    """Whether the device still computes: after some CUDA errors every later call fails."""
    try:
        torch.ones(1, device=device).sum()
        synchronize(device)
    except RuntimeError:
        return False
    return True
