"""Autoregressive generation of continuous frames: each step gives the next one, and a probability that it is the last.

    frames, lengths = generate(first, state, step, Ending(longest=1_200))
    frame, stop, state = step(previous, state)      # [b f] and the logit [b] of stopping; `first` precedes the first

A row ends with the first frame whose stop probability exceeds `threshold`, that frame included, and is then removed
from the state, so that it costs nothing. Rows do not depend on one another. With `together` it is the loop of fairseq:
a row that has ended continues until all rows of the batch have, and the frames after its end are returned as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.core.errors import UsageError

Step = Callable[[Float[Tensor, "b f"], Any], tuple[Float[Tensor, "b f"], Float[Tensor, " b"], Any]]


class Ending(NamedTuple):
    """When generation ends: a row that never stops has `longest` frames."""

    longest: int
    together: bool = False
    threshold: float = 0.5


def generate(
    first: Float[Tensor, "b f"], state: Any, step: Step, ending: Ending
) -> tuple[Float[Tensor, "b t f"], Int[Tensor, " b"]]:
    """Frames of all rows, and how many belong to each; a row that was removed at its end is followed by zeros."""
    if ending.longest < 1:
        raise UsageError(f"What is generated has 1 frame or more, got longest={ending.longest}.")
    rows = torch.arange(len(first), device=first.device)
    lengths = torch.full_like(rows, ending.longest)
    made: list[Tensor] = []
    frame = first
    for place in range(ending.longest):
        frame, stop, state = step(frame, state)
        made.append(first.new_zeros(first.shape).index_copy(0, rows, frame.to(first.dtype)))
        ends = stop.sigmoid() > ending.threshold
        lengths[rows[ends]] = lengths[rows[ends]].clamp(max=place + 1)
        if not ending.together:
            going = (~ends).nonzero()[:, 0]
            if len(going) < len(rows):
                rows, frame, state = rows[going], frame[going], state.select(going)
        if len(rows) == 0 or bool((lengths <= place + 1).all()):
            break
    return torch.stack(made, dim=1), lengths
