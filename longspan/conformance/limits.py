"""Limits: a mechanism that is exact, or becomes exact under some options, equals softmax attention there."""

from dataclasses import replace

import torch

from longspan import attentions
from longspan.attentions import AttentionMeta, Mechanism
from longspan.conformance.at_length import FAR
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, SHORT, Batch, Subject
from longspan.core.spec import Spec

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}  # about a hundred roundings of 63 terms


@promise("exact limit")
def exact_limit(subject: Subject) -> Outcome:
    """Where declared exact, up to 1,100 tokens, it equals softmax of the same projections: 1e-5, 1e-12 in float64."""
    meta = subject.meta
    if not (meta.exact or meta.limit):
        return not_applicable("it declares no limit in which it is softmax attention")
    options = dict(subject.mechanism.options)
    if not meta.exact:
        options |= Spec.parse(f"limit({meta.limit})").options
    under = "always" if meta.exact else meta.limit
    twin = Mechanism(subject.mechanism.cls, options, subject.mechanism.target)
    dtype = subject.dtype_asked
    layer = replace(subject, mechanism=twin).layer(dtype=dtype, longest=FAR + 5)
    softmax = replace(subject, mechanism=attentions.get("softmax(kernel=plain)")).layer(dtype=dtype)
    shared = {name: value for name, value in layer.state_dict().items() if name in softmax.state_dict()}
    softmax.load_state_dict(shared)  # strict: all four projections must be there
    worst = 0.0
    for n in sorted({1, SHORT, 63, _covered(meta)}):
        for batch in _rows(subject, n):
            real = slice(None) if batch.mask is None else batch.mask
            found, expected = (subject.run(which, batch, bfloat16=False)[real] for which in (layer, softmax))
            worst = max(worst, apart := difference(found, expected))
            if not apart <= CLOSE[dtype]:
                return broken(f"declared equal to softmax ({under}), it differs by {spell(apart)} at length {n}")
    return kept(f"equals softmax ({under}) within {spell(worst)}")


def _rows(subject: Subject, n: int) -> tuple[Batch, Batch]:
    """Rows without a mask and padded rows; only one of each in a quick check at long lengths, to save time."""
    whole, padded = subject.batch(2, n, dtype=subject.dtype_asked), subject.padded_batch(n, dtype=subject.dtype_asked)
    return (whole.row(0), padded.row(1)) if subject.quick and n > LONG else (whole, padded)


def _covered(meta: AttentionMeta) -> int:
    """The longest length to compare at: what a window of the declared size covers on one side, at most FAR."""
    if meta.exact:
        return FAR
    sizes = [value for value in Spec.parse(f"limit({meta.limit})").options.values() if type(value) is int and value > 1]
    return max(1, min([FAR, *(size // 2 for size in sizes)]))
