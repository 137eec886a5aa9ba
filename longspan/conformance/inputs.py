"""Inputs: they may have any memory layout and any device, and are never written to."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.difference import difference, spell
from longspan.conformance.padding import maskings
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, LONG, SHORT, Batch, Subject
from longspan.kernels.packing import Layout


@promise("strided inputs")
def strided_inputs(subject: Subject) -> Outcome:
    """Transposed, sliced and expanded tokens and masks give what contiguous ones give."""
    layer, worst = subject.layer(), 0.0
    for n in (SHORT, LONG):
        batch = subject.padded_batch(n)
        same = batch.each(lambda u: u[:1].expand(3, *u.shape[1:]).contiguous())
        for how, (given, lie) in {
            "transposed": (batch, lambda u: u.transpose(0, 1).contiguous().transpose(0, 1)),
            "sliced": (batch, _sliced),
            "expanded": (same, lambda u: u[:1].expand(3, *u.shape[1:])),
        }.items():
            # in bfloat16 the matrix product for another layout rounds differently and may tip a choice of keys
            expected, found = (subject.run(layer, one, bfloat16=False) for one in (given, given.each(lie)))
            worst = max(worst, apart := difference(found, expected))
            if apart > subject.tolerance:
                return broken(f"{how} inputs give outputs that differ by {spell(apart)} (length {n})")
    return kept(f"transposed, sliced or expanded: largest difference {spell(worst)}")


def _sliced(u: Tensor) -> Tensor:
    """The same numbers as every second element of a larger tensor."""
    return torch.stack([u, torch.zeros_like(u)], dim=-1)[..., 0]


ELSEWHERE = re.compile(r"expected device|same device|different devices", re.IGNORECASE)


@promise("another device")
def another_device(subject: Subject) -> Outcome:
    """A layer that was moved computes there: whatever it creates or keeps beside its buffers goes with it.

    The other device is torch's `meta`, which every machine has: tensors there have a shape and no content.
    """
    layer = subject.layer().to("meta")
    for batch in (subject.batch(2, SHORT), subject.padded_batch(LONG)):
        try:
            y = subject.run(layer, batch.each(lambda u: u.to("meta")))
        except (RuntimeError, NotImplementedError) as error:
            message = str(error).splitlines()[0]
            if ELSEWHERE.search(message):
                return broken(f"after moving the layer, a tensor stays behind: {message}")
            return not_applicable(f"it needs values, which tensors of this device lack: {message[:80]}")
        if y.device.type != "meta":
            return broken(f"the output of a layer on another device is on {y.device}")
    return kept("nothing stays behind on the device of the construction")


@promise("inputs untouched")
def inputs_untouched(subject: Subject) -> Outcome:
    """Tokens, contexts, masks and incoming gradients are after every call what they were before it."""
    layer, tried = subject.layer(), 0
    for where, batch in maskings(subject, SHORT).items():
        for method, given, call in _calls(subject, layer, batch):
            before = {name: value.clone() for name, value in given.items()}
            with subject.precision():
                call()
            tried += 1
            changed = [name for name, value in given.items() if not torch.equal(value, before[name])]
            if changed:
                return broken(f"`{method}` writes into {' and '.join(changed)}, padded {where}")
    return kept(f"nothing was written into by {tried} calls")


def _calls(
    subject: Subject, layer: Attention, batch: Batch
) -> Iterator[tuple[str, dict[str, Tensor], Callable[[], object]]]:
    """Every method that takes tokens: its name, what it is given, and the call."""
    assert batch.mask is not None
    layout = Layout.of_mask(batch.mask.clone())
    for mask in (batch.mask, batch.context_mask):
        if mask is not None:
            mask[0] = False  # an implementation may be tempted to unmask an empty row in place
    masks, context = {"mask": batch.mask}, {}
    if batch.context is not None and batch.context_mask is not None:
        masks, context = masks | {"context_mask": batch.context_mask}, {"context": batch.context}
    given = {"x": batch.x, **context, **masks}
    gradient = subject.noise(*batch.x.shape, draw="gradient")
    trained = batch.requiring_grad()
    yield "forward", given, lambda: subject.run(layer, batch)
    yield (
        "backward",
        {"the incoming gradient": gradient, **given, **trained.leaves()},
        lambda: subject.run(layer, trained).backward(gradient),
    )
    yield "carried", given, lambda: layer.carried(batch.x, *context.values(), carry=None, **masks)
    if not subject.pattern.cross:
        packed = {"x": layout.pack(batch.x), "the layout's mask": layout.mask, "its index": layout.index}
        yield "first", given, lambda: layer.first(batch.x, mask=batch.mask)
        yield "packed", packed, lambda: layer.packed(packed["x"], layout)
        yield "first_packed", packed, lambda: layer.first_packed(packed["x"], layout)
    if subject.pattern.causal:
        states: list[Any] = []
        yield "prefill", given, lambda: states.append(layer.prefill(batch.x, *context.values(), **masks)[1])
        x_t = subject.noise(len(batch.x), DIM, draw="token")
        yield "step", {"x": x_t, **given}, lambda: layer.step(x_t, states[0])
