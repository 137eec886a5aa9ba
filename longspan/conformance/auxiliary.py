"""Auxiliary loss: the term that a mechanism adds to the loss of a training step, as declared."""

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.padding import CONTENT
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, Batch, Subject
from longspan.core.seeding import derive, seed_everything

SEGMENTS = 10  # enough to fill a memory of a thousand tokens


@promise("auxiliary loss")
def auxiliary_loss(subject: Subject) -> Outcome:
    """A term is added to the loss where declared: a finite number in training, with a gradient; none in evaluation."""
    evaluated, _ = _term(subject, subject.batch(3, LONG), training=False)
    if evaluated is not None:
        return broken("it adds to the loss in evaluation too")
    batch = subject.padded_batch(LONG)
    term, layer = _term(subject, batch, training=True)
    if not subject.meta.auxiliary_loss:
        return kept("none declared, none added") if term is None else broken("it adds to the loss without saying so")
    if term is None:
        return broken("it declares an auxiliary loss, but adds nothing to the loss in training")
    if term.ndim or not finite(term):
        return broken(f"what it adds to the loss is not a finite number, but {term.detach().cpu().tolist()}"[:200])
    parameters = _parameters_of(term, layer)
    if not parameters:
        return broken("what it adds to the loss has no gradient for any of its parameters")
    filled = batch.with_padding_filled(subject.batch(3, LONG, draw="content", scale=CONTENT))
    again, _ = _term(subject, filled, training=True)
    apart = difference(torch.zeros(()) if again is None else again.cpu(), term.cpu())
    if not apart <= subject.tolerance:
        return broken(f"the content of padding changes what it adds to the loss by {spell(apart)}")
    return kept(f"{float(term.detach()):.3g}, with a gradient for {', '.join(parameters)}; none in evaluation")


def reached(subject: Subject, layer: Attention, batch: Batch) -> list[str]:
    """The parameters that get a gradient from the auxiliary loss of a layer, where it declares one."""
    if not subject.meta.auxiliary_loss:
        return []
    training, layer.auxiliary_terms = layer.training, []
    subject.run(layer.train(), batch)
    term = layer.auxiliary_loss()
    layer.train(training).auxiliary_terms = None
    return [] if term is None else _parameters_of(term, layer)


def _parameters_of(term: Tensor, layer: Attention) -> list[str]:
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(term, list(parameters.values()), allow_unused=True)
    return [name for name, g in zip(parameters, gradients, strict=True) if g is not None and bool(g.any())]


def _term(subject: Subject, batch: Batch, *, training: bool) -> tuple[Tensor | None, Attention]:
    """What a new layer adds to the loss, at the first of a few consecutive segments where it adds anything."""
    layer = subject.layer(training=training)
    seed_everything(derive(subject.seed, "auxiliary"))
    layer.auxiliary_terms = []
    inputs = (batch.x,) if batch.context is None else (batch.x, batch.context)
    masks = {"mask": batch.mask} | ({"context_mask": batch.context_mask} if subject.pattern.cross else {})
    with subject.precision():
        carry, most = None, SEGMENTS if subject.meta.carries == "segments" else 1
        while not layer.auxiliary_terms and (most := most - 1) >= 0:
            _, carry = layer.carried(*inputs, carry=carry, **masks)
    return layer.auxiliary_loss(), layer
