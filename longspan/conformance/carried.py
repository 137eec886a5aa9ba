"""Carried: the path that passes something on begins like any other, with nothing."""

from longspan.conformance.difference import difference, spell
from longspan.conformance.padding import maskings
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import SHORT, Subject


@promise("carried = forward")
def carried_equals_forward(subject: Subject) -> Outcome:
    """`carried`, given nothing to carry, gives what `forward` gives, with and without masks."""
    layer, worst = subject.layer(), 0.0
    for where, batch in {"nowhere": subject.batch(3, SHORT), **maskings(subject, SHORT)}.items():
        expected = subject.run(layer, batch)
        inputs = (batch.x,) if batch.context is None else (batch.x, batch.context)
        masks = {"mask": batch.mask} | ({"context_mask": batch.context_mask} if subject.pattern.cross else {})
        with subject.precision():
            found, _ = layer.carried(*inputs, carry=None, **masks)
        real = slice(None) if batch.mask is None else batch.mask
        worst = max(worst, apart := difference(found[real], expected[real]))
        if apart > subject.tolerance:
            return broken(f"with nothing carried the output differs from `forward` by {spell(apart)}, padded {where}")
    return kept(f"largest difference from `forward` {spell(worst)}")
