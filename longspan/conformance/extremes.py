"""Extremes: very large, constant and zero inputs stay finite, forward and backward, in float32 and bfloat16.

A check in float64 tries that precision alone.
"""

from dataclasses import replace

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.difference import finite
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, Batch, Subject

LARGE = 1e4
VERY_LONG = 2048


@promise("extreme inputs")
def extreme_inputs(subject: Subject) -> Outcome:
    """Inputs of 1e4, of -1e4, constant and zero give finite outputs and gradients."""
    layer = subject.layer(dtype=subject.dtype_asked)
    precisions = {"float64": False} if subject.dtype == "float64" else {"float32": False, "bfloat16": True}
    extremes = _extremes(subject)
    for precision, bfloat16 in precisions.items():
        if subject.quick and not _not_finite(subject, layer, _together(list(extremes.values())), bfloat16):
            continue  # all at once, since rows do not mix; one by one only to name what is not finite
        for name, batch in extremes.items():
            wild = _not_finite(subject, layer, batch, bfloat16)
            if wild:
                return broken(f"with {name} in {precision}, not finite: {', '.join(wild)}")
    return kept(f"finite for {', '.join(extremes)}, in {' and '.join(precisions)}")


@promise("finite at length")
def finite_at_length(subject: Subject) -> Outcome:
    """At 2,048 tokens ordinary, constant and very large inputs give finite outputs and gradients too."""
    layer = subject.layer(dtype=subject.dtype_asked, longest=VERY_LONG)
    noise = subject.batch(1, VERY_LONG, VERY_LONG, dtype=subject.dtype_asked)
    noise = replace(noise, mask=subject.right(VERY_LONG, (VERY_LONG - 3,)))
    inputs = {"noise": noise, "a constant": _each(noise, torch.ones_like)}
    inputs["all 1e4"] = _each(noise, lambda u: torch.full_like(u, LARGE))
    precisions = [subject.dtype]
    if not subject.quick:
        inputs["noise of 1e4"] = _each(noise, lambda u: u * LARGE)
        precisions += ["bfloat16"] if subject.dtype == "float32" else []
    for precision in precisions:
        for name, batch in inputs.items():
            if wild := _not_finite(subject, layer, batch, precision == "bfloat16"):
                return broken(f"with {name} at length {VERY_LONG} in {precision}, not finite: {', '.join(wild)}")
    return kept(f"finite for {', '.join(inputs)} at length {VERY_LONG} in {' and '.join(precisions)}")


def _extremes(subject: Subject) -> dict[str, Batch]:
    plain = subject.padded_batch(LONG, dtype=subject.dtype_asked)
    one_huge = plain.x.clone()
    one_huge[:, LONG // 3] *= LARGE
    return {
        "noise of 1e4": _each(plain, lambda u: u * LARGE),
        "all 1e4": _each(plain, lambda u: torch.full_like(u, LARGE)),
        "all -1e4": _each(plain, lambda u: torch.full_like(u, -LARGE)),
        "alternating 1e4 and -1e4": _each(plain, lambda u: LARGE * u.sign()),
        "one token of 1e4": replace(plain, x=one_huge),
        "a constant": _each(plain, torch.ones_like),
        "zeros": _each(plain, torch.zeros_like),
    }


def _together(batches: list[Batch]) -> Batch:
    """All rows of these batches as one batch."""

    def rows(parts: list[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there) if there else None

    x = torch.cat([one.x for one in batches])
    context, mask, context_mask = (
        rows([getattr(one, name) for one in batches]) for name in ("context", "mask", "context_mask")
    )
    return Batch(x, context, mask, context_mask)


def _each(batch: Batch, change) -> Batch:
    return replace(batch, x=change(batch.x), context=None if batch.context is None else change(batch.context))


def _not_finite(subject: Subject, layer: Attention, batch: Batch, bfloat16: bool) -> list[str]:
    """The names of what is not finite among real outputs and all gradients."""
    batch = batch.requiring_grad()
    y = subject.run(layer, batch, bfloat16=bfloat16)
    named = {**batch.leaves(), **{n: p for n, p in layer.named_parameters() if p.requires_grad}}
    assert batch.mask is not None
    direction = subject.noise(*y.shape, draw="direction", dtype=batch.x.dtype) * batch.mask[..., None]
    gradients = torch.autograd.grad((y.to(direction.dtype) * direction).sum(), list(named.values()), allow_unused=True)
    wild = [f"the gradient of {name}" for name, g in zip(named, gradients, strict=True) if not finite(g)]
    return wild if finite(y[batch.mask]) else ["the output", *wild]
