"""Half precision: on a GPU a layer runs under float16 autocast, and with all its weights in bfloat16."""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.compiled import ON_A_GPU
from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, SHORT, Batch, Subject

COARSE = 5e-2  # of the norm of a typical row: a layer rounds about five times, to 8 bits in bfloat16


@promise("float16")
def float16(subject: Subject) -> Outcome:
    """On a GPU outputs and gradients are finite under float16 autocast, and outputs within 5 % of float32."""
    if subject.on_cpu:
        return not_applicable(ON_A_GPU)
    device = torch.device(subject.device).type
    layer = subject.layer(dtype=torch.float32)

    def run(batch: Batch) -> Tensor:
        with torch.autocast(device, dtype=torch.float16):
            return subject.run(layer, batch, bfloat16=False)

    return within_5_percent(subject, layer, run, torch.float32)


@promise("bfloat16 weights")
def bfloat16_weights(subject: Subject) -> Outcome:
    """On a GPU a layer with all weights in bfloat16 gives bfloat16, within 5 % of the same weights in float32."""
    return not_applicable(ON_A_GPU) if subject.on_cpu else with_bfloat16_weights(subject)


def with_bfloat16_weights(subject: Subject) -> Outcome:
    coarse = subject.layer(dtype=torch.bfloat16)
    fine = subject.layer(dtype=torch.bfloat16).float()
    return within_5_percent(subject, fine, lambda batch: subject.run(coarse, batch, bfloat16=False), torch.bfloat16)


def within_5_percent(subject: Subject, fine: Attention, run, dtype: torch.dtype) -> Outcome:
    """The typical row of `run` against float32 on the same inputs, rounded to bfloat16 for both.

    Of rows, since rounding may tip a choice (which keys are kept, how they are sorted) in a few of them.
    """
    worst = 0.0
    for n in (SHORT, LONG):
        rounded = subject.padded_batch(n, dtype=torch.bfloat16)
        batch, exact = (_as(rounded, kind) for kind in (dtype, torch.float32))
        leaf = batch.requiring_grad()
        y = run(leaf)
        assert batch.mask is not None
        loss = y[batch.mask].float().square().mean()  # a mean, whose gradient float16 holds
        gradients = torch.autograd.grad(loss, list(leaf.leaves().values()), allow_unused=True)
        if not finite(y[batch.mask], *gradients):
            return broken(f"the output or the gradient of an input is not finite at length {n}")
        if dtype is torch.bfloat16 and y.dtype is not dtype:
            return broken(f"weights and tokens are bfloat16, the output is {str(y.dtype).removeprefix('torch.')}")
        apart = _typical(y[batch.mask], subject.run(fine, exact, bfloat16=False)[batch.mask])
        worst = max(worst, apart)
        if not apart <= COARSE:
            return broken(f"a typical row is {apart:.1%} away from float32 at length {n}")
    return kept(f"a typical row is at most {worst:.1%} away from float32")


def _typical(found: Float[Tensor, "rows d"], expected: Float[Tensor, "rows d"]) -> float:
    """The median over rows of the distance, in the norm of a typical row."""
    found, expected = found.detach().float(), expected.detach().float()
    size = float(expected.norm(dim=-1).median()) or 1.0
    return float((found - expected).norm(dim=-1).median()) / size


def _as(batch: Batch, dtype: torch.dtype) -> Batch:
    context = None if batch.context is None else batch.context.to(dtype)
    return Batch(batch.x.to(dtype), context, batch.mask, batch.context_mask)
