"""Half precision: on a GPU a layer runs under float16 autocast, and with all its weights in bfloat16."""

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.compiled import ON_A_GPU
from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.rounding import beyond_rounding, change
from longspan.conformance.subject import LONG, SHORT, Batch, Subject


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

    return within_5_percent(subject, layer, run, torch.float16)


@promise("bfloat16 weights")
def bfloat16_weights(subject: Subject) -> Outcome:
    """On a GPU a layer with all weights in bfloat16 gives bfloat16, within 5 % of the same weights in float32."""
    return not_applicable(ON_A_GPU) if subject.on_cpu else with_bfloat16_weights(subject)


def with_bfloat16_weights(subject: Subject) -> Outcome:
    coarse = subject.layer(dtype=torch.bfloat16)
    fine = subject.layer(dtype=torch.bfloat16).float()
    return within_5_percent(subject, fine, lambda batch: subject.run(coarse, batch, bfloat16=False), torch.bfloat16)


def within_5_percent(subject: Subject, fine: Attention, run, dtype: torch.dtype) -> Outcome:
    """The output of `run` in `dtype` against that of the layer in float32, on inputs rounded to bfloat16 for both."""
    worst = 0.0
    for n in (SHORT, LONG):
        tokens = subject.padded_batch(n, dtype=torch.bfloat16)
        exact = change(tokens, Tensor.float)
        leaf = (tokens if dtype is torch.bfloat16 else exact).requiring_grad()
        y = run(leaf)
        assert leaf.mask is not None
        found = y[leaf.mask]
        loss = found.float().square().mean()  # a mean, whose gradient fits float16
        gradients = torch.autograd.grad(loss, list(leaf.leaves().values()), allow_unused=True)
        if not finite(found, *gradients):
            return broken(f"the output or the gradient of an input is not finite at length {n}")
        if dtype is torch.bfloat16 and y.dtype is not dtype:
            return broken(f"weights and tokens are bfloat16, the output is {str(y.dtype).removeprefix('torch.')}")
        with torch.no_grad():
            expected = subject.run(fine, exact, bfloat16=False)[leaf.mask]
        apart, explained = beyond_rounding(subject, fine, exact, found=found.detach(), exact=expected, dtype=dtype)
        worst = max(worst, apart)
        if explained is not None:
            return broken(
                f"the output is {apart:.1%} away from float32 at length {n}, where rounding explains {explained:.1%}"
            )
    return kept(f"at most {worst:.1%} away from float32, in the norm of the output")
