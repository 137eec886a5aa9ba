"""Carried: with nothing carried `carried` equals `forward`, and what is carried reaches the next layer or segment."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Attention, Carry
from longspan.conformance.difference import difference, spell
from longspan.conformance.padding import maskings
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import SHORT, Batch, Subject


@promise("carried = forward")
def carried_equals_forward(subject: Subject) -> Outcome:
    """`carried`, given nothing to carry, gives what `forward` gives, with and without masks."""
    layer, worst = subject.layer(), 0.0
    for where, batch in {"nowhere": subject.batch(3, SHORT), **maskings(subject, SHORT)}.items():
        expected = subject.run(layer, batch)
        found, _ = _carried(subject, layer, batch, None)
        real = slice(None) if batch.mask is None else batch.mask
        worst = max(worst, apart := difference(found[real], expected[real]))
        if apart > subject.tolerance:
            return broken(f"with nothing carried the output differs from `forward` by {spell(apart)}, padded {where}")
    return kept(f"largest difference from `forward` {spell(worst)}")


@promise("carry")
def carry(subject: Subject) -> Outcome:
    """What is carried, where declared, has a say in the next layer or segment, row by row, from real tokens alone."""
    layer, first, second = subject.layer(), subject.padded_batch(SHORT), subject.padded_batch(SHORT, draw="second")
    if not subject.meta.carries:
        token = object()
        same = _carried(subject, layer, first, token)[1] is token
        return not_applicable("nothing is declared") if same else broken("it carries something without saying so")
    _, passed = _carried(subject, layer, first, None)
    if passed is None:
        return not_applicable(f"as {subject.pattern} it passes nothing on")
    if not isinstance(passed, Carry):
        return broken(f"what it carries is a {type(passed).__name__}; let it extend Carry, so that rows can be chosen")
    real, expected = second.mask, _carried(subject, layer, second, passed)[0]
    assert real is not None
    if not difference(expected[real], subject.run(layer, second)[real]) > subject.tolerance:
        return broken("what it carries changes nothing")
    worst = 0.0
    for trial, found, wanted in _trials(subject, layer, first, second, passed, expected):
        worst = max(worst, apart := difference(found, wanted))
        if not apart <= subject.tolerance:
            return broken(f"{trial} changes the output after what was carried by {spell(apart)}")
    return kept(f"it has a say; largest change by other rows, padding or the future {spell(worst)}")


def _trials(
    subject: Subject,
    layer: Attention,
    first: Batch,
    second: Batch,
    passed: Carry,
    expected: Float[Tensor, "b n d"],
):
    """Changes that must leave the output as it was: name, output found, output expected."""
    assert second.mask is not None
    rows = torch.tensor([2, 0], device=second.x.device)
    found, _ = _carried(subject, layer, second.each(lambda part: part[rows]), passed.select(rows))
    yield "choosing rows", found[second.mask[rows]], expected[rows][second.mask[rows]]
    for i in range(3):
        _, alone = _carried(subject, layer, first.real_row(i), None)
        found, _ = _carried(subject, layer, second.real_row(i), alone)
        yield "the company of other rows, or padding,", found[0], expected[i][second.mask[i]]
    if subject.meta.carries == "segments":
        everyone = torch.ones(3, dtype=torch.bool, device=second.x.device)
        found, _ = _carried(subject, layer, second, passed.forget(everyone))
        yield "what should have been forgotten", found[second.mask], subject.run(layer, second)[second.mask]
    if subject.pattern.causal:
        cut = SHORT // 2
        later = torch.cat([second.x[:, :cut], subject.noise(*second.x[:, cut:].shape, draw="later")], dim=1)
        found, _ = _carried(subject, layer, replace(second, x=later), passed)
        shown = second.mask[:, :cut]
        yield "noise in later tokens", found[:, :cut][shown], expected[:, :cut][shown]
    if subject.meta.carries == "segments":
        layer.segment = SHORT // 3
        with subject.precision():
            found, left = layer.in_segments(second.x, mask=second.mask, carry=passed)
            wanted, expected_left = Attention.in_segments(layer, second.x, mask=second.mask, carry=passed)
        yield "`in_segments`", found[second.mask], wanted[second.mask]
        found, wanted = (_carried(subject, layer, first, each)[0][first.mask] for each in (left, expected_left))
        yield "what `in_segments` leaves", found, wanted


def _carried(subject: Subject, layer: Attention, batch: Batch, carry: Any) -> tuple[Float[Tensor, "b n d"], Any]:
    inputs = (batch.x,) if batch.context is None else (batch.x, batch.context)
    masks = {"mask": batch.mask} | ({"context_mask": batch.context_mask} if subject.pattern.cross else {})
    with subject.precision():
        return layer.carried(*inputs, carry=carry, **masks)
