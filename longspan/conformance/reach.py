"""Reach: an output depends on what the pattern lets it see, and not on its own token alone.

The token at a position is held fixed while everything else it may see is redrawn several times. The output must
move, and in more directions than there are heads: a memory that holds only the current token can still be rescaled
by the past, head by head, but its direction cannot change.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Pattern
from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, HEADS, Batch, Subject

DRAWS = HEADS + 8
MATERIAL = 1e-3  # of the size of the output; below it a change is called rounding
LENGTH = 12  # within one window or block of any usual size


@promise("past is used")
def past_is_used(subject: Subject) -> Outcome:
    """Other tokens before a position change its output, and not only as a multiple of its own value."""
    if subject.pattern is not Pattern.CAUSAL_SELF:
        return not_applicable("the pattern is not causal self attention")
    layer = subject.layer()
    moved = []
    for t in range(1, LENGTH):
        x = subject.noise(DRAWS, LENGTH, DIM, draw=("past", t))
        x[:, t:] = x[:1, t:]
        moved.append(_movement(subject.run(layer, Batch(x))[:, t]))
    return _verdict(subject, moved, "the past", "as if only the current token were remembered")


@promise("context is used")
def context_is_used(subject: Subject) -> Outcome:
    """What a query may see (the other tokens, or the context of a cross pattern) changes its output materially."""
    if subject.pattern is Pattern.CAUSAL_SELF:
        return not_applicable("said by 'past is used'")
    layer = subject.layer()
    if subject.pattern.cross:
        x = subject.noise(1, LENGTH, DIM, draw="queries").expand(DRAWS, -1, -1)
        y = subject.run(layer, Batch(x, subject.noise(DRAWS, LENGTH + 3, DIM, draw="contexts")))
        moved = [_movement(y[:, t]) for t in range(LENGTH)]
        return _verdict(subject, moved, "the context", "as if its content did not count")
    moved = []
    for t in range(LENGTH):
        x = subject.noise(DRAWS, LENGTH, DIM, draw=("others", t))
        x[:, t] = x[0, t]
        moved.append(_movement(subject.run(layer, Batch(x))[:, t]))
    return _verdict(subject, moved, "the other tokens", "as if only the current token counted")


def _movement(y: Float[Tensor, "draws d"]) -> tuple[float, float]:
    """How far the output moves relative to its size, and how much of that is left beyond one direction per head."""
    y = y.detach().double()
    if not finite(y):
        return math.nan, math.nan
    spread = torch.linalg.svdvals(y - y.mean(dim=0))
    size = float(torch.linalg.matrix_norm(y)) or 1.0
    return float(spread[0]) / size, float(spread[HEADS]) / (float(spread[0]) or 1.0)


def _verdict(subject: Subject, moved: list[tuple[float, float]], what: str, reading: str) -> Outcome:
    """Most positions must be reached: the first of a block may rightly see nothing but itself.

    If a mechanism declares that it mixes nothing, none may be.
    """
    if wild := sum(math.isnan(size) for size, _ in moved):
        return broken(f"the output is not finite at {wild} of {len(moved)} positions")
    still = sum(not size > MATERIAL for size, _ in moved)
    if not subject.mechanism.meta.mixes:
        if still < len(moved):
            return broken(f"it declares that it mixes nothing, but {what} moves {len(moved) - still} positions")
        return kept(f"as declared, {what} moves nothing")
    stiff = sum(size > MATERIAL and not turn > MATERIAL for size, turn in moved)
    if 2 * still > len(moved):
        return broken(f"new draws of {what} leave the output alone at {still} of {len(moved)} positions, {reading}")
    if 2 * (still + stiff) > len(moved):
        return broken(f"new draws of {what} only rescale each head at {stiff} of {len(moved)} positions, {reading}")
    typical = sorted(size for size, _ in moved)[len(moved) // 2]
    return kept(f"new draws of {what} move the output by {typical:.0%} of its size at a typical position")
