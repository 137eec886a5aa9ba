"""Shapes: a layer can be built, keeps the shape, dtype and device of its input, and rows do not see one another."""

import torch

from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, LONG, SHORT, Subject
from longspan.kernels.packing import Layout


@promise("construction")
def construction(subject: Subject) -> Outcome:
    """A layer can be built with the arguments every backbone passes."""
    layer = subject.layer()
    count = sum(parameter.numel() for parameter in layer.parameters())
    return kept(f"a layer of width {DIM} has {count} parameters")


@promise("shape and dtype")
def shape_and_dtype(subject: Subject) -> Outcome:
    """The output has the shape, dtype and device of x, also when the inner width differs from the outer one."""
    tried = 0
    for dtype in (torch.float32, torch.float64) if subject.on_cpu else (torch.float32,):
        for inner in (None, DIM // 2):
            layer = subject.layer(dtype=dtype, inner=inner)
            for batch in (subject.batch(2, SHORT, dtype=dtype), subject.padded_batch(SHORT, dtype=dtype)):
                y = subject.run(layer, batch, bfloat16=False)
                tried += 1
                if (y.shape, y.dtype, y.device) != (batch.x.shape, batch.x.dtype, batch.x.device):
                    return broken(
                        f"x is {tuple(batch.x.shape)} {batch.x.dtype} on {batch.x.device}, "
                        f"the output {tuple(y.shape)} {y.dtype} on {y.device} (inner={inner})"
                    )
                if not finite(y):
                    return broken(f"the output is not finite in {dtype} (inner={inner})")
    return kept(f"right in {tried} combinations of dtype, inner width and masks")


@promise("batch independence")
def batch_independence(subject: Subject) -> Outcome:
    """A row of the batch gives what it gives alone, with several rows and heads together, with and without masks."""
    layer, worst = subject.layer(), 0.0
    for n in (SHORT, LONG):
        for batch in (subject.batch(3, n), subject.padded_batch(n)):
            together = subject.run(layer, batch)
            for i in range(3):
                alone = subject.run(layer, batch.row(i))
                shown = slice(None) if batch.mask is None else batch.mask[i]
                apart = difference(together[i][shown], alone[0][shown])
                worst = max(worst, apart)
                if apart > subject.tolerance:
                    masks = "without masks" if batch.mask is None else "with masks"
                    return broken(f"row {i} differs from the same row alone by {spell(apart)} {masks} (length {n})")
    return kept(f"largest difference from a row alone {spell(worst)}")


@promise("first row alone")
def first_row_alone(subject: Subject) -> Outcome:
    """`first`, asked for the output at the first token alone, gives the first row of the whole output."""
    if subject.pattern.cross:
        return not_applicable("only self patterns are asked for it")
    layer, worst = subject.layer(), 0.0
    for batch in (subject.batch(2, LONG), subject.padded_batch(LONG)):
        whole = subject.run(layer, batch)[:, 0]
        with subject.precision():
            alone = [layer.first(batch.x, mask=batch.mask)]
            if batch.mask is not None:
                layout = Layout.of_mask(batch.mask)
                alone.append(layer.first_packed(layout.pack(batch.x), layout))
        worst = max([worst, *(difference(one, whole) for one in alone)])
        if worst > subject.tolerance:
            return broken(f"the first row alone differs from the first row of all by {spell(worst)} (length {LONG})")
    return kept(f"largest difference from the whole output {spell(worst)}")
