"""Precision: training in bfloat16 computes the same thing, only more coarsely."""

import torch

from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Verdict, broken, kept
from longspan.conformance.subject import LONG, SHORT, Subject

VERY_LONG = 1000  # sums kept in bfloat16 lose single tokens from a few hundred on

COARSE = 5e-2  # of the norm of the output: bfloat16 keeps 8 bits, and a layer rounds about five times


@promise("bfloat16")
def bfloat16(subject: Subject) -> Verdict:
    """Under bfloat16 autocast the output is finite and within 5 % of that in float32."""
    layer, worst = subject.layer(dtype=torch.float32, longest=VERY_LONG + 5), 0.0
    for n in (SHORT, LONG, VERY_LONG):
        batch = subject.padded_batch(n, dtype=torch.float32)
        assert batch.mask is not None
        fine = subject.run(layer, batch, bfloat16=False)[batch.mask].detach()
        coarse = subject.run(layer, batch, bfloat16=True)[batch.mask].detach().float()
        if not finite(coarse):
            return broken(f"the output is not finite at length {n}")
        apart = float((coarse - fine).norm() / fine.norm())
        worst = max(worst, apart)
        if apart > COARSE:
            return broken(f"the output is {apart:.1%} away from float32 at length {n}")
    return kept(f"at most {worst:.1%} away from float32, in the norm of the output")
