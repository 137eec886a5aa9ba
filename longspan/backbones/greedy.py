"""Greedy decoding, token by token, for any model with a decoding state, within a shortest and a longest length.

    tokens = greedy(logits, state, step, limits)      # logits [b v] of the first token; step(token, state) gives more

A row that has written its last token is frozen: what follows is padding, and the row is removed from the state, so that
it costs nothing. Rows do not depend on one another, so the output does not depend on the rest of the batch.

With `stop="batch"` it is the search of ParaGen, which CAB ran: a row that has written `end` continues after it, until
all rows predict `end` in the same step, which is not written.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.core.errors import UsageError

Stop = Literal["row", "batch"]
Step = Callable[[Int[Tensor, " b"], Any], tuple[Float[Tensor, "b v"], Any]]


class Limits(NamedTuple):
    """`end` is forbidden as one of the first `shortest` tokens; after `longest` tokens a row stops without it.

    `stop` says what ends: each row by itself, or the batch when all rows end at once.
    """

    end: int
    pad: int
    longest: int
    shortest: int = 0
    stop: Stop = "row"


def greedy(logits: Float[Tensor, "b v"], state: Any, step: Step, limits: Limits) -> Int[Tensor, "b t"]:
    """The likeliest token at every place, `end` included, `pad` after the last one."""
    if not 0 <= limits.shortest <= limits.longest or limits.longest < 1:
        raise UsageError(
            f"What is written has 1 token or more, and shortest <= longest; got shortest={limits.shortest} and "
            f"longest={limits.longest}."
        )
    rows = torch.arange(len(logits), device=logits.device)
    written = torch.full((len(logits), limits.longest), limits.pad, device=logits.device)
    for place in range(limits.longest):
        if place < limits.shortest:
            logits[:, limits.end] = -torch.inf
        token = logits.argmax(dim=-1)
        if limits.stop == "batch" and bool((token == limits.end).all()):
            break
        written[rows, place] = token
        if place >= limits.shortest and limits.stop == "row":
            going = (token != limits.end).nonzero()[:, 0]
            if len(going) < len(rows):
                rows, token, state = rows[going], token[going], state.select(going)
        if len(rows) == 0 or place + 1 == limits.longest:
            break
        logits, state = step(token, state)
    return written
