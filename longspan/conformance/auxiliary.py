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
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(term, list(parameters.values()), allow_unused=True)
    reached = [name for name, g in zip(parameters, gradients, strict=True) if g is not None and bool(g.any())]
    if not reached:
        return broken("what it adds to the loss has no gradient for any of its parameters")
    filled = batch.with_padding_filled(subject.batch(3, LONG, draw="content", scale=CONTENT))
    again, _ = _term(subject, filled, training=True)
    apart = difference(torch.zeros(()) if again is None else again.cpu(), term.cpu())
    if not apart <= subject.tolerance:
        return broken(f"the content of padding changes what it adds to the loss by {spell(apart)}")
    return kept(f"{float(term.detach()):.3g}, with a gradient for {', '.join(reached)}; none in evaluation")


def _term(subject: Subject, batch: Batch, *, training: bool) -> tuple[Tensor | None, Attention]:
    """What two segments of a new layer add to the loss, the second of them after what the first passes on."""
    layer = subject.layer(training=training)
    seed_everything(derive(subject.seed, "auxiliary"))
    layer.auxiliary_terms = []
    inputs = (batch.x,) if batch.context is None else (batch.x, batch.context)
    masks = {"mask": batch.mask} | ({"context_mask": batch.context_mask} if subject.pattern.cross else {})
    with subject.precision():
        _, carry = layer.carried(*inputs, carry=None, **masks)
        layer.carried(*inputs, carry=carry, **masks)
    return layer.auxiliary_loss(), layer
