"""Causality: in a causal pattern nothing after a position can change its output.

Perturbation is the decisive test: a leak through a choice (which keys are kept, how they are sorted) has no gradient.
In a causal cross pattern the later positions are those of x; the whole context is visible.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, SHORT, Batch, Subject

NOT_CAUSAL = "the pattern is not causal"


@promise("no future leak")
def no_future_leak(subject: Subject) -> Outcome:
    """Replacing all later tokens by noise, or making the last one huge, leaves earlier outputs as they were."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    layer, worst, tried = subject.layer(), 0.0, 0
    for trial in range(12 if subject.quick else 48):
        n = (SHORT, 7, LONG)[trial % 3]
        scale = (1.0, 1.0, 4.0, 4.0)[trial % 4]  # large tokens make attention choose, small ones make it average
        given = {"draw": trial, "scale": scale}
        batch = subject.padded_batch(n, **given) if trial % 2 else subject.batch(3, n, **given)
        before = subject.run(layer, batch)
        for cut in _cuts(n):
            for changed, what in _futures(subject, batch, cut, trial):
                after = subject.run(layer, changed)
                real = slice(None) if batch.mask is None else batch.mask[:, :cut]
                apart = difference(after[:, :cut][real], before[:, :cut][real])
                worst, tried = max(worst, apart), tried + 1
                if not apart <= subject.tolerance:
                    return broken(f"{what} changes outputs before position {cut} of {n} by {spell(apart)}")
    return kept(f"largest change of an earlier output {spell(worst)} over {tried} perturbations")


def _cuts(n: int) -> list[int]:
    """Where the past ends and the future begins: early, in the middle, and before the last token."""
    return sorted({1, n // 3, n // 2 + 1, n - 1} & set(range(1, n)))


def _futures(subject: Subject, batch: Batch, cut: int, trial: int) -> Iterator[tuple[Batch, str]]:
    """The same tokens before `cut`; after it noise, and then with the last token huge as well."""
    later = subject.noise(*batch.x[:, cut:].shape, draw=("later", trial, cut))
    yield replace(batch, x=torch.cat([batch.x[:, :cut], later], dim=1)), "noise in later tokens"
    later[:, -1] *= subject.huge
    yield replace(batch, x=torch.cat([batch.x[:, :cut], later], dim=1)), "a huge last token"


@promise("no future gradient")
def no_future_gradient(subject: Subject) -> Outcome:
    """The derivative of an output by any later token is zero."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    layer, worst = subject.layer(), 0.0
    for n in (7, LONG) if subject.quick else (2, 7, SHORT, 64, LONG):
        batch = subject.batch(2, n).requiring_grad()
        y = subject.run(layer, batch)
        direction = subject.noise(*y.shape, draw="direction", dtype=y.dtype)
        for cut in _cuts(n):
            past = (y * direction)[:, :cut].sum()
            (gradient,) = torch.autograd.grad(
                past, batch.x, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            leak = float(gradient[:, cut:].abs().max()) / (float(gradient.abs().max()) or 1.0)
            worst = max(worst, leak)
            if not leak <= subject.tolerance:
                return broken(f"outputs before position {cut} of {n} have a gradient of {spell(leak)} by later tokens")
    return kept(f"largest gradient by a later token {spell(worst)}")


@promise("prefix = full")
def prefix_equals_full(subject: Subject) -> Outcome:
    """The output for a prefix is the prefix of the output, at every length, whatever the block size."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    layer, worst = subject.layer(), 0.0
    for n, cuts in ((13, range(1, 13)), (LONG, (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, LONG - 1))):
        batch = subject.batch(2, n, LONG)
        full = subject.run(layer, batch)
        for cut in cuts:
            prefix = subject.run(layer, replace(batch, x=batch.x[:, :cut]))
            apart = difference(prefix, full[:, :cut])
            worst = max(worst, apart)
            if not apart <= subject.tolerance:
                return broken(f"the first {cut} of {n} tokens alone give outputs that differ by {spell(apart)}")
    return kept(f"largest difference of a prefix {spell(worst)}")
