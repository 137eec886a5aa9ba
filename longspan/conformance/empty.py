"""Empty rows: a query that may see no real key gives exactly 0, and its gradients are finite."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from longspan.attentions import Pattern
from longspan.conformance.difference import finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, SHORT, Batch, Subject
from longspan.conformance.surrogate import gradients_of


@promise("empty rows")
def empty_rows(subject: Subject) -> Outcome:
    """Without biases, queries with nothing to see give 0; outputs and gradients stay finite everywhere."""
    layer, count = subject.layer(bias=False), 0
    for n in (1, SHORT, LONG):
        batch = _with_empty_rows(subject, n)
        y, sees_nothing = subject.run(layer, batch).detach(), _sees_nothing(subject, batch)
        if not finite(y):
            return broken(f"the output is not finite when some queries see no real key (length {n})")
        largest = float(y[sees_nothing].abs().max())
        if largest > 0:
            return broken(f"a query that sees no real key gives {spell(largest)} instead of 0 (length {n})")
        wild = [name for name, g in gradients_of(subject, layer, batch).items() if not finite(g)]
        if wild:
            return broken(f"the gradient of {', '.join(wild)} is not finite when queries see nothing (length {n})")
        count += int(sees_nothing.sum())
    return kept(f"{count} queries that see no real key give exactly 0, with finite gradients")


@promise("empty rows in bfloat16")
def empty_rows_in_bfloat16(subject: Subject) -> Outcome:
    """Under bfloat16 autocast, queries with nothing to see give 0 as well, with finite gradients; so does `first`."""
    layer, count = subject.layer(bias=False, dtype=torch.float32), 0
    for n in (1, SHORT, LONG):
        batch = _with_empty_rows(subject, n, dtype=torch.float32).requiring_grad()
        y, sees_nothing = subject.run(layer, batch, bfloat16=True), _sees_nothing(subject, batch)
        if not finite(y):
            return broken(f"the output is not finite when some queries see no real key (length {n})")
        if y[sees_nothing].any():
            largest = float(y[sees_nothing].detach().abs().max())
            return broken(f"a query that sees no real key gives {spell(largest)} instead of 0 (length {n})")
        named = {**batch.leaves(), **{name: p for name, p in layer.named_parameters() if p.requires_grad}}
        direction = subject.noise(*y.shape, draw="direction", dtype=torch.float32)
        gradients = torch.autograd.grad((y.float() * direction).sum(), list(named.values()), allow_unused=True)
        wild = [name for name, g in zip(named, gradients, strict=True) if not finite(g)]
        if wild:
            return broken(f"the gradient of {', '.join(wild)} is not finite when queries see nothing (length {n})")
        if not subject.pattern.cross:
            with subject.precision(bfloat16=True):
                first = layer.first(batch.x, mask=batch.mask)
            if not finite(first) or first[sees_nothing[:, 0]].any():
                return broken(f"`first` of a row that sees no real key is not 0 (length {n})")
        count += int(sees_nothing.sum())
    return kept(f"{count} queries that see no real key give exactly 0, with finite gradients")


def _with_empty_rows(subject: Subject, n: int, dtype: torch.dtype | None = None) -> Batch:
    """One row all real, one all padded, and one whose first tokens are padded."""
    batch = subject.batch(3, n, dtype=dtype)
    source = batch.x if batch.context is None else batch.context
    real = subject.right(source.shape[1], (source.shape[1], 0, source.shape[1]))
    real[2, :3] = False
    return replace(batch, context_mask=real) if subject.pattern.cross else replace(batch, mask=real)


def _sees_nothing(subject: Subject, batch: Batch) -> Bool[Tensor, "b n"]:
    real = batch.context_mask if subject.pattern.cross else batch.mask
    assert real is not None
    if subject.pattern is Pattern.CAUSAL_SELF:
        return real.cumsum(dim=1) == 0
    return ~real.any(dim=1, keepdim=True).expand(batch.x.shape[:2])
