"""Precision: training in bfloat16 computes the same thing, only more coarsely (`rounding.py` says how coarsely)."""

import torch

from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.rounding import beyond_rounding, change, change_weights, rounded
from longspan.conformance.subject import LONG, SHORT, Subject

VERY_LONG = 1000  # sums kept in bfloat16 lose single tokens from a few hundred on


@promise("bfloat16")
def bfloat16(subject: Subject) -> Outcome:
    """Under bfloat16 autocast the output is within 5 % of float32 (or float64), from the same rounded numbers."""
    layer, exact_layer = (subject.layer(dtype=d, longest=VERY_LONG + 5) for d in (torch.float32, subject.dtype_asked))
    for one in (layer, exact_layer):
        change_weights(one, rounded)
    worst, asked = 0.0, str(subject.dtype_asked).removeprefix("torch.")
    for n in (SHORT, LONG, VERY_LONG):
        batch = change(subject.padded_batch(n, dtype=torch.float32), rounded)
        assert batch.mask is not None
        exact = change(batch, lambda u: u.to(subject.dtype_asked))
        with torch.no_grad():
            coarse = subject.run(layer, batch, bfloat16=True)[batch.mask]
            fine = subject.run(exact_layer, exact, bfloat16=False)[batch.mask]
        if not finite(coarse, fine):
            return broken(f"the output is not finite at length {n}")
        apart, explained = beyond_rounding(subject, exact_layer, exact, found=coarse, exact=fine, dtype=torch.bfloat16)
        worst = max(worst, apart)
        if explained is not None:
            return broken(
                f"the output is {apart:.1%} away from {asked} at length {n}, where rounding explains {explained:.1%}"
            )
    return kept(f"at most {worst:.1%} away from {asked}, in the norm of the output")
