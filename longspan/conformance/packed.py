"""Packed rows: real tokens alone give the gradients of the padded batch, cost no more, and a row may be empty."""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor

from longspan.attentions.base import Attention, HeadwiseAttention
from longspan.conformance.counting import count
from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.padding import maskings
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, LONG, SHORT, Subject
from longspan.kernels.packing import Layout

NOT_PACKED = "packing is for self patterns"
LONG_ROW, SHORT_ROW, SHORT_ROWS = 128, 8, 31  # padded to a rectangle they are ten times as large
DEARER = 3.0  # room for windows and blocks that a short row by itself cuts short


@promise("packed gradients")
def packed_gradients(subject: Subject) -> Outcome:
    """Gradients through `packed` and `first_packed` are those of the padded batch, for inputs and parameters."""
    if subject.pattern.cross:
        return not_applicable(NOT_PACKED)
    layer, worst = subject.layer(), 0.0
    for n in (SHORT,) if subject.quick else (SHORT, LONG):
        for where, batch in maskings(subject, n).items():
            assert batch.mask is not None
            layout, mask = Layout.of_mask(batch.mask), batch.mask
            pairs: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]
            pairs = {"packed": (layer.packed, lambda x, layout=layout, mask=mask: layout.pack(layer(x, mask=mask)))}
            if where == "at the right":  # there the first token of a row is at its first position
                pairs["first_packed"] = (layer.first_packed, lambda x, mask=mask: layer(x, mask=mask)[:, 0])
            for name, (packed, padded) in pairs.items():
                found = _gradients(subject, layer, batch.x, lambda x, f=packed, at=layout: f(at.pack(x), at))
                expected = _gradients(subject, layer, batch.x, padded)
                size = max(float(g.abs().max()) for g in expected.values()) or 1.0
                for leaf, gradient in expected.items():
                    # relative to the largest of all gradients: some are zero up to rounding
                    apart = difference(found[leaf], gradient) * float(gradient.abs().max() or 1.0) / size
                    worst = max(worst, apart)
                    if not apart <= subject.tolerance:
                        place = f"{where} (length {n})"
                        return broken(f"the gradient of {leaf} by {name} differs by {spell(apart)}, padded {place}")
    return kept(f"largest difference from gradients of the padded batch {spell(worst)}")


def _gradients(subject: Subject, layer: Attention, x: Tensor, run: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The gradient of a fixed random projection of the output, 0 where none arrives."""
    x = x.detach().clone().requires_grad_()
    with subject.precision():
        y = run(x)
    direction = subject.noise(*y.shape, draw="direction", dtype=y.dtype)
    named = {"x": x, **{name: p for name, p in layer.named_parameters() if p.requires_grad}}
    found = torch.autograd.grad((y * direction).sum(), list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


@promise("packed cost")
def packed_cost(subject: Subject) -> Outcome:
    """A packed path of the mechanism's own costs what its rows cost one by one, not what the padded rectangle costs.

    The default path pads, computes and packs again; it is right for every mechanism, and asked for nothing here.
    """
    if subject.pattern.cross:
        return not_applicable(NOT_PACKED)
    layer = subject.layer(dtype=subject.dtype_asked, training=True)
    layout = Layout.of_lengths([LONG_ROW] + [SHORT_ROW] * SHORT_ROWS, device=subject.device)
    x = subject.noise(LONG_ROW + SHORT_ROW * SHORT_ROWS, DIM, dtype=subject.dtype_asked).requires_grad_()
    with _default_paths() as taken:
        together = count(lambda: layer.packed(x, layout).sum().backward()).operations
    if taken:
        return not_applicable("here it packs by the default, which pads")
    long, short = (count(lambda n=n: layer(x[None, :n]).sum().backward()).operations for n in (LONG_ROW, SHORT_ROW))
    ratio = together / (long + SHORT_ROWS * short)
    figure = f"{1 + SHORT_ROWS} rows packed take {ratio:.2f} times the operations of the rows one by one"
    return kept(figure) if ratio <= DEARER else broken(f"{figure}; allowed is {DEARER}")


@contextlib.contextmanager
def _default_paths() -> Iterator[list[str]]:
    """Collect the names of default packed paths that are taken in the block; these pad to the longest row."""
    taken: list[str] = []

    def noting(cls: type, name: str) -> contextlib.AbstractContextManager:
        default = getattr(cls, name)

        def noted(*given, **named):
            taken.append(name)
            return default(*given, **named)

        return mock.patch.object(cls, name, noted)

    with noting(Attention, "packed"), noting(HeadwiseAttention, "attend_packed"):
        yield taken


@promise("rows without tokens")
def rows_without_tokens(subject: Subject) -> Outcome:
    """Rows without a single token may lie among packed ones: others are as without them, and their first row is 0."""
    if subject.pattern.cross:
        return not_applicable(NOT_PACKED)
    layer, worst = subject.layer(bias=False), 0.0
    for n in (SHORT, LONG):
        mask = subject.right(n, (0, n, 0, 0, 5, n - 1, 0))
        x, layout = subject.noise(len(mask), n, DIM, draw="sparse rows"), Layout.of_mask(mask)
        empty = ~mask.any(dim=1)
        with subject.precision():
            whole, packed = layer(x, mask=mask), layer.packed(layout.pack(x), layout)
            firsts = {"first": layer.first(x, mask=mask), "first_packed": layer.first_packed(layout.pack(x), layout)}
        worst = max(worst, apart := difference(packed, layout.pack(whole)))
        if apart > subject.tolerance:
            return broken(f"among rows without tokens, packed rows differ by {spell(apart)} (length {n})")
        for name, first in firsts.items():
            if not finite(first) or first[empty].any():
                return broken(f"`{name}` of a row without tokens is not 0 (length {n})")
            worst = max(worst, apart := difference(first[~empty], whole[~empty, 0]))
            if apart > subject.tolerance:
                return broken(f"among rows without tokens, `{name}` differs by {spell(apart)} (length {n})")
    return kept(f"largest difference of other rows {spell(worst)}")
