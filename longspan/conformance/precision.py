"""Precision: training in bfloat16 computes the same thing, only more coarsely."""

import torch

from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, SHORT, Subject

VERY_LONG = 1000  # sums kept in bfloat16 lose single tokens from a few hundred on

COARSE = 5e-2  # of the norm of the output: bfloat16 keeps 8 bits, and a layer rounds about five times


@promise("bfloat16")
def bfloat16(subject: Subject) -> Outcome:
    """Under bfloat16 autocast the output is finite and within 5 % of that in float32 (or float64, if asked for)."""
    layer, exact_layer = (subject.layer(dtype=d, longest=VERY_LONG + 5) for d in (torch.float32, subject.dtype_asked))
    worst, asked = 0.0, str(subject.dtype_asked).removeprefix("torch.")
    for n in (SHORT, LONG, VERY_LONG):
        batch = subject.padded_batch(n, dtype=torch.float32)
        assert batch.mask is not None
        exact = subject.padded_batch(n, dtype=subject.dtype_asked)
        fine = subject.run(exact_layer, exact, bfloat16=False)[batch.mask].detach()
        coarse = subject.run(layer, batch, bfloat16=True)[batch.mask].detach().to(fine.dtype)
        if not finite(coarse):
            return broken(f"the output is not finite at length {n}")
        apart = float((coarse - fine).norm() / fine.norm())
        worst = max(worst, apart)
        if apart > COARSE:
            return broken(f"the output is {apart:.1%} away from {asked} at length {n}")
    return kept(f"at most {worst:.1%} away from {asked}, in the norm of the output")
