"""Precision: training in bfloat16 computes the same thing, only more coarsely.

Weights and inputs are rounded to bfloat16 first, so that both precisions start from the same numbers. What is left is
the rounding inside. A mechanism that chooses (the best keys, a bucket) may choose otherwise after any rounding, in
float32 too: it may be twice as far off as its float32 output moves when weights and inputs move by one rounding.
"""

from dataclasses import replace

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, SHORT, Batch, Subject

VERY_LONG = 1000  # sums kept in bfloat16 lose single tokens from a few hundred on

COARSE = 5e-2  # of the norm of the output: bfloat16 keeps 8 bits, and a layer rounds about five times
ROUNDING = 2**-8  # relative, of one number in bfloat16
CHOICES = 2  # times as far as one rounding moves a choice: projections and scores are rounded one after the other


@promise("bfloat16")
def bfloat16(subject: Subject) -> Outcome:
    """Under bfloat16 autocast the output is within 5 % of float32 (or float64), from the same rounded numbers."""
    layer, exact_layer = (subject.layer(dtype=d, longest=VERY_LONG + 5) for d in (torch.float32, subject.dtype_asked))
    for one in (layer, exact_layer):
        _change_weights(one, _rounded)
    worst, asked = 0.0, str(subject.dtype_asked).removeprefix("torch.")
    for n in (SHORT, LONG, VERY_LONG):
        batch = _change(subject.padded_batch(n, dtype=torch.float32), _rounded)
        assert batch.mask is not None
        exact = _change(batch, lambda u: u.to(subject.dtype_asked))
        with torch.no_grad():
            coarse = subject.run(layer, batch, bfloat16=True)[batch.mask]
            fine = subject.run(exact_layer, exact, bfloat16=False)[batch.mask]
        if not finite(coarse, fine):
            return broken(f"the output is not finite at length {n}")
        apart = _apart(coarse, fine)
        worst = max(worst, apart)
        if not apart <= COARSE and not apart <= (moves := CHOICES * _sensitivity(subject, exact_layer, exact, fine)):
            return broken(
                f"the output is {apart:.1%} away from {asked} at length {n}, where rounding explains {moves:.1%}"
            )
    return kept(f"at most {worst:.1%} away from {asked}, in the norm of the output")


def _sensitivity(subject: Subject, layer: Attention, batch: Batch, fine: Tensor) -> float:
    """How far the exact output moves when each weight and input moves by one rounding, up or down."""
    signs = torch.Generator().manual_seed(subject.seed)

    def moved(u: Tensor) -> Tensor:
        up = torch.randint(2, u.shape, generator=signs).to(u.device, u.dtype)
        return u * (1 + ROUNDING * (2 * up - 1))

    weights = {name: value.clone() for name, value in layer.state_dict().items()}
    _change_weights(layer, moved)
    with torch.no_grad():
        found = subject.run(layer, _change(batch, moved), bfloat16=False)[batch.mask]
    layer.load_state_dict(weights)
    return _apart(found, fine)


def _apart(found: Tensor, expected: Tensor) -> float:
    size = float(expected.norm())
    gap = float((found.to(expected.dtype) - expected).norm())
    return gap / size if size else gap


def _rounded(u: Tensor) -> Tensor:
    return u.to(torch.bfloat16).to(u.dtype)


def _change(batch: Batch, how) -> Batch:
    return replace(batch, **{name: how(u) for name, u in batch.leaves().items()})


def _change_weights(layer: Attention, how) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(how(parameter))
