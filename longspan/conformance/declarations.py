"""Declarations: what the meta data say about patterns and dropout is what the layer does."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import ALL_PATTERNS, Attention
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, HEADS, LONGEST, SHORT, Batch, Subject
from longspan.core.errors import UnsupportedPattern


@promise("undeclared patterns")
def undeclared_patterns(subject: Subject) -> Outcome:
    """A pattern that is not declared is refused in the constructor, with a sentence."""
    undeclared = [pattern for pattern in ALL_PATTERNS if pattern not in subject.meta.patterns]
    if not undeclared:
        return not_applicable("all four patterns are declared")
    for pattern in undeclared:
        try:
            subject.mechanism(DIM, HEADS, pattern, max_length=LONGEST, max_context=LONGEST)
        except UnsupportedPattern:
            continue
        return broken(f"{pattern} is not declared, yet a layer was built for it")
    return kept(f"refused: {', '.join(undeclared)}")


@promise("dropout declaration")
def dropout_declaration(subject: Subject) -> Outcome:
    """Attention dropout acts where the meta data say: on the weights while training, or nowhere at all."""
    declared = subject.meta.dropout
    layer, batch = subject.layer(dropout=0.5), subject.batch(2, SHORT)
    still = subject.layer(dropout=0.0)
    still.load_state_dict(layer.state_dict())
    evaluated, without = subject.run(layer, batch), subject.run(still, batch)
    if not (apart := difference(evaluated, without)) <= subject.tolerance:
        return broken(f"in evaluation mode a dropout of 0.5 changes the output by {spell(apart)}")
    moved = difference(*(_trained(subject, one, batch) for one in (layer, still)))
    if declared == "none":
        if not moved <= subject.tolerance:
            return broken(f"declared to have no dropout, yet training with 0.5 changes the output by {spell(moved)}")
        return kept("dropout changes nothing, as declared")
    if not math.isfinite(moved):
        return broken("training with a dropout of 0.5 gives an output that is not finite")
    if not moved > 1e-3:
        return broken(f"dropout on the weights is declared, yet training with 0.5 changes the output by {spell(moved)}")
    return kept(f"acts in training only; with 0.5 the output moves by {spell(moved)}")


def _trained(subject: Subject, layer: Attention, batch: Batch) -> Float[Tensor, "b n d"]:
    """The output in training mode; the seed makes all other randomness the same for every layer."""
    torch.manual_seed(subject.seed)
    return subject.run(layer.train(), batch)
