"""Padding: the content of padded positions, and their number, never matter."""

from dataclasses import replace

import torch

from longspan.attentions.base import Attention
from longspan.conformance.difference import difference, spell, where_apart
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, SHORT, Batch, Subject
from longspan.kernels.packing import Layout

CONTENT = 1e4
FAR = 1100  # beyond every usual window


@promise("padding content")
def padding_content(subject: Subject) -> Outcome:
    """Filling padded positions with anything, up to 1e4, leaves real outputs as they were."""
    layer, worst, tried = subject.layer(), 0.0, 0
    for n in (SHORT, LONG):
        for where, batch in maskings(subject, n).items():
            noise = subject.batch(3, n, draw="content", scale=CONTENT)
            filled = batch.with_padding_filled(noise)
            before, after = subject.run(layer, batch), subject.run(layer, filled)
            assert batch.mask is not None
            apart = difference(after[batch.mask], before[batch.mask])
            worst, tried = max(worst, apart), tried + 1
            if apart > subject.tolerance:
                place = where_apart(after, before, batch.mask)
                return broken(f"1e4 in padding {where} changes real outputs by {spell(apart)} ({place}, length {n})")
    return kept(f"largest change by content of 1e4 {spell(worst)} over {tried} masks")


def maskings(subject: Subject, n: int) -> dict[str, Batch]:
    """The same tokens padded at the right, at the left, and with holes."""
    right = subject.padded_batch(n)
    assert right.mask is not None
    left = replace(
        right, mask=right.mask.flip(1), context_mask=None if right.context_mask is None else right.context_mask.flip(1)
    )
    holes = replace(right, mask=_holes(right.mask), context_mask=_holes(right.context_mask))
    return {"at the right": right, "at the left": left, "between real tokens": holes}


def _holes(mask: torch.Tensor | None) -> torch.Tensor | None:
    if mask is None:
        return None
    holed = mask.clone()
    holed[1, 2::3] = False
    holed[2, :1] = False
    return holed


@promise("appended padding")
def appended_padding(subject: Subject) -> Outcome:
    """A padded row gives what the same row gives alone without padding, and more padding changes nothing."""
    layer, worst = subject.layer(), 0.0
    for n in (SHORT, LONG):
        batch = subject.padded_batch(n)
        together = subject.run(layer, batch)
        wider = subject.run(layer, _widened(subject, batch, 11))
        assert batch.mask is not None
        apart = difference(wider[:, :n][batch.mask], together[batch.mask])
        what = "11 more padded positions change real outputs"
        for i in range(3):
            if apart > subject.tolerance:
                break
            worst = max(worst, apart)
            alone = subject.run(layer, batch.real_row(i))
            apart = difference(together[i][batch.mask[i]], alone[0])
            what = f"row {i}, padded, differs from the same row alone"
        worst = max(worst, apart)
        if apart > subject.tolerance:
            return broken(f"{what} by {spell(apart)} (length {n})")
    return kept(f"largest difference from rows without padding {spell(worst)}")


def _widened(subject: Subject, batch: Batch, more: int) -> Batch:
    rows, _, dim = batch.x.shape
    tail = subject.noise(rows, more, dim, draw="tail") * 10
    hidden = torch.zeros(rows, more, dtype=torch.bool, device=batch.x.device)
    assert batch.mask is not None
    x, mask = torch.cat([batch.x, tail], dim=1), torch.cat([batch.mask, hidden], dim=1)
    if batch.context is None or batch.context_mask is None:
        return Batch(x, None, mask)
    return Batch(x, torch.cat([batch.context, tail], 1), mask, torch.cat([batch.context_mask, hidden], 1))


@promise("left padding")
def left_padding(subject: Subject) -> Outcome:
    """A row padded at the left gives what it gives alone, unless places are declared as positions in the batch."""
    return _alone(subject, "at the left", takes_places=subject.meta.places == "positions")


@promise("holes")
def holes(subject: Subject) -> Outcome:
    """Tokens with padding between them give what they give alone; where their order counts, a hole may be a place."""
    return _alone(subject, "between real tokens", takes_places=subject.meta.places != "tokens")


def _alone(subject: Subject, where: str, *, takes_places: bool) -> Outcome:
    """Rows padded there against the same rows alone; padding declared to take places must change them at some length.

    A declaration is made for the default options, so under others it may be more than is needed, and the change may be
    less than bfloat16 resolves.
    """
    lengths, worst = (SHORT, LONG, FAR) if takes_places else (SHORT, LONG), 0.0
    for n in lengths:
        layer, batch = subject.layer(longest=n + 5), maskings(subject, n)[where]
        worst = max(worst, apart := _from_rows_alone(subject, layer, batch))
        if apart > subject.tolerance:
            found = f"a row padded {where} differs from the same row alone by {spell(apart)} (length {n})"
            if takes_places:
                return kept(f"places are {subject.meta.places}, as declared: {found}")
            if where == "between real tokens" and _order_counts(subject, layer, n):
                return not_applicable(f"the order of tokens counts, and a hole is a place: {found}")
            return broken(f"places are declared to be {subject.meta.places}, yet {found}")
    if takes_places and not subject.mechanism.options and not subject.exact_in_bfloat16:
        return broken(f"places are declared to be {subject.meta.places}, yet no row padded {where} differs from alone")
    return kept(f"largest difference from rows alone {spell(worst)}")


def _from_rows_alone(subject: Subject, layer: Attention, batch: Batch) -> float:
    """How far the real outputs are from those of each row without its padding."""
    assert batch.mask is not None
    together = subject.run(layer, batch)
    rows = zip(together, batch.mask, strict=True)
    return max(difference(y[real], subject.run(layer, batch.real_row(i))[0]) for i, (y, real) in enumerate(rows))


def _order_counts(subject: Subject, layer: Attention, n: int) -> bool:
    """Whether the order of what a query sees changes its output, as under a window, a decay or a convolution."""
    batch, generator = subject.batch(2, n), torch.Generator().manual_seed(subject.seed)
    before = subject.run(layer, batch)
    if batch.context is not None:
        order = torch.randperm(batch.context.shape[1], generator=generator)
        moved, expected = subject.run(layer, replace(batch, context=batch.context[:, order])), before
    elif subject.pattern.causal:  # the last token sees all others
        order = torch.cat([torch.randperm(n - 1, generator=generator), torch.tensor([n - 1])])
        moved, expected = subject.run(layer, replace(batch, x=batch.x[:, order]))[:, -1:], before[:, -1:]
    else:
        order = torch.randperm(n, generator=generator)
        moved, expected = subject.run(layer, replace(batch, x=batch.x[:, order])), before[:, order]
    return not difference(moved, expected) <= subject.tolerance


@promise("packed = padded")
def packed_equals_padded(subject: Subject) -> Outcome:
    """`packed`, on real tokens alone, gives what the padded batch gives on them."""
    if subject.pattern.cross:
        return not_applicable("packing is for self patterns")
    layer, worst = subject.layer(), 0.0
    for n in (SHORT, LONG):
        for where, batch in maskings(subject, n).items():
            assert batch.mask is not None
            layout = Layout.of_mask(batch.mask)
            apart = difference(_packed(subject, layer, batch, layout), layout.pack(subject.run(layer, batch)))
            worst = max(worst, apart)
            if apart > subject.tolerance:
                return broken(f"real tokens packed differ by {spell(apart)} from those padded {where} (length {n})")
    return kept(f"largest difference from the padded batch {spell(worst)}")


def _packed(subject: Subject, layer: Attention, batch: Batch, layout: Layout) -> torch.Tensor:
    with subject.precision():
        return layer.packed(layout.pack(batch.x), layout)
