"""Training: what holds in evaluation holds while a layer trains, and nothing but declared randomness differs.

Every run uses a new layer with the same seed, so that its random numbers are the same before and after a change, and
statistics that training keeps (the running mean of a norm) start afresh.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.conformance.causality import NOT_CAUSAL
from longspan.conformance.difference import difference, spell
from longspan.conformance.padding import CONTENT
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, SHORT, Batch, Subject
from longspan.core.seeding import derive, seed_everything


@promise("causality in training")
def causality_in_training(subject: Subject) -> Outcome:
    """In training mode too, later tokens change no earlier output and have no gradient from one."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    worst = 0.0
    for n in (SHORT, LONG):
        for batch in (subject.batch(2, n), subject.padded_batch(n)):
            before = _trained(subject, batch)
            for cut in (n // 3, n - 1):
                later = subject.noise(*batch.x[:, cut:].shape, draw=("later", n, cut))
                after = _trained(subject, replace(batch, x=torch.cat([batch.x[:, :cut], later], dim=1)))
                shown = slice(None) if batch.mask is None else batch.mask[:, :cut]
                worst = max(worst, apart := difference(after[:, :cut][shown], before[:, :cut][shown]))
                if not apart <= subject.tolerance:
                    return broken(
                        f"noise in later tokens changes outputs before position {cut} of {n} by {spell(apart)}"
                    )
        batch, cut = subject.batch(2, n).requiring_grad(), n // 2
        y = _trained(subject, batch)
        past = (y * subject.noise(*y.shape, draw="direction", dtype=y.dtype))[:, :cut].sum()
        (gradient,) = torch.autograd.grad(past, batch.x, allow_unused=True, materialize_grads=True)
        leak = float(gradient[:, cut:].abs().max()) / (float(gradient.abs().max()) or 1.0)
        if not leak <= subject.tolerance:
            return broken(f"outputs before position {cut} of {n} have a gradient of {spell(leak)} by later tokens")
    return kept(f"largest change of an earlier output {spell(worst)}")


@promise("rows in training")
def rows_in_training(subject: Subject) -> Outcome:
    """In training mode too, the other rows of a batch change nothing in a row."""
    worst = 0.0
    for n in (SHORT, LONG):
        for batch in (subject.batch(3, n), subject.padded_batch(n)):
            before = _trained(subject, batch)
            for i in range(3):
                after = _trained(subject, _others_anew(subject, batch, i))
                shown = slice(None) if batch.mask is None else batch.mask[i]
                worst = max(worst, apart := difference(after[i][shown], before[i][shown]))
                if not apart <= subject.tolerance:
                    return broken(f"new tokens in the other rows change row {i} by {spell(apart)} (length {n})")
    return kept(f"largest change by other rows {spell(worst)}")


def _others_anew(subject: Subject, batch: Batch, i: int) -> Batch:
    """The same row i among rows of other, larger tokens."""
    anew = {name: 3 * subject.noise(*u.shape, draw=("others", name, i)) for name, u in batch.leaves().items()}
    for name, tokens in batch.leaves().items():
        anew[name][i] = tokens[i]
    return replace(batch, **anew)


@promise("padding in training")
def padding_in_training(subject: Subject) -> Outcome:
    """In training mode too, the content of padding changes no real output."""
    worst = 0.0
    for n in (SHORT, LONG):
        batch = subject.padded_batch(n)
        assert batch.mask is not None
        filled = batch.with_padding_filled(subject.batch(3, n, draw="content", scale=CONTENT))
        before, after = _trained(subject, batch), _trained(subject, filled)
        worst = max(worst, apart := difference(after[batch.mask], before[batch.mask]))
        if not apart <= subject.tolerance:
            return broken(f"1e4 in padding changes real outputs by {spell(apart)} (length {n})")
    return kept(f"largest change by content of 1e4 {spell(worst)}")


@promise("training = evaluation")
def training_equals_evaluation(subject: Subject) -> Outcome:
    """Without dropout, training computes what evaluation does, unless declared stochastic; then a seed fixes it."""
    worst = 0.0
    for n in (SHORT, LONG):
        for batch in (subject.batch(3, n), subject.padded_batch(n)):
            real = slice(None) if batch.mask is None else batch.mask
            found = _trained(subject, batch)
            if subject.meta.stochastic:
                expected, than = _trained(subject, batch), "a second run under the same seed"
            else:
                expected, than = subject.run(subject.layer(), batch), "evaluation"
            worst = max(worst, apart := difference(found[real], expected[real]))
            if not apart <= subject.tolerance:
                return broken(f"in training mode the output differs by {spell(apart)} from {than} (length {n})")
    return kept(f"largest difference from {than} {spell(worst)}")


def _trained(subject: Subject, batch: Batch) -> Float[Tensor, "b n d"]:
    layer = subject.layer(training=True)
    seed_everything(derive(subject.seed, "training"))
    return subject.run(layer, batch)
