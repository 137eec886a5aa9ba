"""Weights: the matrix that `weights` returns is the one a mechanism attends with."""

from dataclasses import replace

import torch

from longspan.attentions import HeadwiseAttention
from longspan.conformance.difference import difference, spell
from longspan.conformance.padding import maskings
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, HEADS, LONG, SHORT, Subject


@promise("weights = attend")
def weights_equal_attend(subject: Subject) -> Outcome:
    """`weights`, multiplied by the values, gives what the values add to `attend` at real queries, whatever is padded.

    What a mechanism adds whatever the values are, such as learned values of its own, has no column in the matrix.
    """
    layer, worst = subject.layer(), 0.0
    if not isinstance(layer, HeadwiseAttention):
        return not_applicable("it is not made of queries, keys and values")
    for n in (SHORT, LONG):
        for where, batch in {"nowhere": subject.batch(3, n), **maskings(subject, n)}.items():
            batch = replace(batch, context_mask=None) if where == "between real tokens" else batch  # queries alone
            m = n if batch.context is None else batch.context.shape[1]
            q, k, v = (
                subject.noise(3, HEADS, length, DIM // HEADS, draw=(name, n))
                for name, length in (("q", n), ("k", m), ("v", m))
            )
            masks = {"key_mask": batch.context_mask if subject.pattern.cross else batch.mask, "query_mask": batch.mask}
            with subject.precision():
                weights = layer.weights(q, k, **masks)
                if weights is None:
                    return not_applicable("it shows no matrix of weights")
                attended = layer.attend(q, k, v, **masks)
                if attended.shape != q.shape:
                    return not_applicable("queries of several kinds have values of their own")
                expected = attended - layer.attend(q, k, torch.zeros_like(v), **masks)
                expected = expected.transpose(1, 2)
                found = (weights.to(v.dtype) @ v).transpose(1, 2)
            real = slice(None) if batch.mask is None else batch.mask
            worst = max(worst, apart := difference(found[real], expected[real]))
            if apart > subject.tolerance:
                return broken(
                    f"weights times values differ from `attend` by {spell(apart)}, padded {where} (length {n})"
                )
    return kept(f"largest difference from `attend` {spell(worst)}")
