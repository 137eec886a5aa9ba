"""Sizes: other numbers of heads and other widths keep the same promises as the usual ones."""

from dataclasses import replace

import torch

from longspan.attentions import Attention
from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import SHORT, Batch, Subject

# the outer width, heads, the inner width: one head, odd numbers of heads and channels, inner widths above and below
SIZES = ((16, 1, 16), (15, 3, 15), (16, 8, 16), (12, 1, 20), (10, 2, 6), (24, 3, 24))


@promise("other sizes")
def other_sizes(subject: Subject) -> Outcome:
    """With 1, 3 or 8 heads and odd widths, shapes are right, rows do not mix, and the future stays hidden."""
    worst = 0.0
    for dim, heads, inner in SIZES:
        layer = subject.layer(dim=dim, heads=heads, inner=inner)
        size = f"width {dim}, {heads} head{'s' if heads > 1 else ''} and inner width {inner}"
        batch = subject.padded_batch(SHORT, dim=dim)
        y = subject.run(layer, batch)
        if y.shape != batch.x.shape or not finite(y):
            return broken(f"with {size} the output is {tuple(y.shape)}{'' if finite(y) else ' and not finite'}")
        worst = max(worst, apart := _mixing(subject, layer, batch, y))
        if apart > subject.tolerance:
            return broken(f"with {size} a row differs from the same row alone by {spell(apart)}")
        if subject.pattern.causal:
            worst = max(worst, apart := _leak(subject, layer, batch, y))
            if apart > subject.tolerance:
                return broken(f"with {size} later tokens change earlier outputs by {spell(apart)}")
    return kept(f"right for {len(SIZES)} other sizes, within {spell(worst)}")


def _mixing(subject: Subject, layer: Attention, batch: Batch, together: torch.Tensor) -> float:
    """How far a row is from the same row alone."""
    assert batch.mask is not None
    alone = [subject.run(layer, batch.row(i))[0] for i in range(len(batch.x))]
    return difference(together[batch.mask], torch.stack(alone)[batch.mask])


def _leak(subject: Subject, layer: Attention, batch: Batch, before: torch.Tensor) -> float:
    cut = SHORT // 2 - 1
    later = subject.noise(*batch.x[:, cut:].shape, draw="later")
    after = subject.run(layer, replace(batch, x=torch.cat([batch.x[:, :cut], later], dim=1)))
    return difference(after[:, :cut], before[:, :cut])
