"""Decoding: one token at a time gives what the whole sequence gives at once."""

import dataclasses
import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, Batch, Subject

NO_DECODING = "only causal patterns are decoded"
NEW = 5  # tokens decoded after a masked prefix


@promise("step = parallel")
def step_equals_parallel(subject: Subject) -> Outcome:
    """A prefix (also an empty one) and then single steps give the outputs of the whole sequence."""
    if not subject.pattern.causal:
        return not_applicable(NO_DECODING)
    layer, worst, tried = subject.layer(), 0.0, 0
    for n, splits in ((21, (0, 1, 7, 20)), (LONG_PREFIX + 4, (LONG_PREFIX,))):
        batch = subject.batch(3, n, n + 5, scale=2.0)
        if batch.context is not None:
            m = batch.context.shape[1]
            batch = replace(batch, context_mask=subject.right(m, (m, m - 3, m // 2)))
        full = subject.run(layer, batch)
        for split in splits:
            stepped = _decode(subject, layer, batch, split)
            worst, tried = max(worst, apart := difference(stepped, full)), tried + 1
            if apart > subject.tolerance:
                gaps = (stepped - full).detach().abs().nan_to_num(nan=math.inf).amax(dim=(0, 2))
                first = int((gaps > subject.tolerance * float(full.detach().abs().max())).nonzero()[0])
                return broken(
                    f"after a prefix of {split} of {n} outputs differ by {spell(apart)}, first at position {first}"
                )
    return kept(f"largest difference from the whole sequence {spell(worst)} over {tried} splits")


@promise("masked prefix")
def masked_prefix(subject: Subject) -> Outcome:
    """Padded positions do not advance a row: rows of different lengths, holes included, go on as each would alone."""
    if not subject.pattern.causal:
        return not_applicable(NO_DECODING)
    layer, worst = subject.layer(), 0.0
    for width in (9, 70):
        for holes in (False, True):
            batch = masked(subject, width, holes)
            new = subject.noise(3, NEW, DIM, draw="new")
            stepped, _ = steps(subject, layer, new, prefill(subject, layer, batch)[1])
            for i in range(3):
                expected = _continued_alone(subject, layer, batch, new, i)
                worst = max(worst, apart := difference(stepped[i], expected))
                if apart > subject.tolerance:
                    assert batch.mask is not None
                    shape = "with holes" if holes else "padded at the right"
                    tokens = f"{int(batch.mask[i].sum())} real tokens in {width} positions, {shape}"
                    return broken(f"row {i} ({tokens}) goes on differently by {spell(apart)} than alone")
    return kept(f"largest difference from each row alone {spell(worst)}")


@promise("decode state")
def decode_state(subject: Subject) -> Outcome:
    """Rows of a state can be chosen in any order, and its bytes can be counted."""
    if not subject.pattern.causal:
        return not_applicable(NO_DECODING)
    layer = subject.layer()
    batch = masked(subject, 9, holes=False)
    new = subject.noise(3, NEW, DIM, draw="new")
    _, state = prefill(subject, layer, batch)
    if not dataclasses.is_dataclass(state) or not hasattr(state, "select"):
        return broken(f"the state is a {type(state).__name__}; derive it from DecodeState, as a dataclass")
    _, state = steps(subject, layer, new[:, :1], state)
    nbytes = state.nbytes
    if not nbytes > 0:
        return broken(f"after 10 positions the state says it holds {nbytes} bytes")
    rows = torch.tensor([2, 0, 2], device=subject.device)
    stepped, _ = steps(subject, layer, new[rows, 1:], state.select(rows))
    for place, i in enumerate(rows.tolist()):
        expected = _continued_alone(subject, layer, batch, new, i)[1:]
        if (apart := difference(stepped[place], expected)) > subject.tolerance:
            return broken(f"row {i}, chosen as row {place}, goes on differently by {spell(apart)}")
    return kept(f"rows 2, 0, 2 of 3 go on as before; {nbytes // 3} bytes a row after 10 positions at width {DIM}")


LONG_PREFIX = 130  # beyond two chunks of 64


def _decode(subject: Subject, layer: Attention, batch: Batch, split: int) -> Float[Tensor, "b n d"]:
    y, state = prefill(subject, layer, replace(batch, x=batch.x[:, :split]))
    stepped, _ = steps(subject, layer, batch.x[:, split:], state)
    return torch.cat([y, stepped], dim=1)


def prefill(subject: Subject, layer: Attention, batch: Batch) -> tuple[Float[Tensor, "b n d"], Any]:
    with subject.precision():
        return layer.prefill(batch.x, batch.context, mask=batch.mask, context_mask=batch.context_mask)


def steps(
    subject: Subject, layer: Attention, x: Float[Tensor, "b n d"], state: Any
) -> tuple[Float[Tensor, "b n d"], Any]:
    rows = [x[:, :0]]
    for x_t in x.unbind(dim=1):
        with subject.precision():
            y_t, state = layer.step(x_t, state)
        rows.append(y_t[:, None])
    return torch.cat(rows, dim=1), state


def masked(subject: Subject, width: int, holes: bool) -> Batch:
    """Rows with some, all and none of the prefix real."""
    batch = subject.batch(3, width, 12)
    mask = subject.right(width, (width // 2, width, 0))
    if holes:
        mask[0, 1] = False
        mask[1, ::3] = False
    batch = replace(batch, mask=mask)
    return batch if batch.context is None else replace(batch, context_mask=subject.right(12, (12, 7, 3)))


def _continued_alone(
    subject: Subject, layer: Attention, batch: Batch, new: Float[Tensor, "b t d"], i: int
) -> Float[Tensor, "t d"]:
    """The outputs for new tokens after the real tokens of one row, computed at once."""
    alone = batch.real_row(i)
    whole = replace(alone, x=torch.cat([alone.x, new[i : i + 1]], dim=1))
    return subject.run(layer, whole)[0, -new.shape[1] :]
