"""Carrying: what a mechanism passes from layer to layer of an encoder, or from segment to segment of a row.

    carry = None
    for block in blocks:
        y, carry = carried_by_layers(block.attention, x, layout, mask, carry)

No gradient passes between segments.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions import Attention, Carry
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout


def carried_by_layers(
    attention: Attention,
    x: Float[Tensor, "*tokens d"],
    layout: Layout | None = None,
    mask: Bool[Tensor, "b n"] | None = None,
    carry: Any = None,
    *,
    first: bool = False,
) -> tuple[Float[Tensor, "*rows d"], Any]:
    """The output of a self slot, at every token or at the first of each row, and what it carries to the next layer.

    Tokens are padded [b n d], or packed [t d] with a layout. If nothing is carried, the mechanism's own methods handle
    packed rows and first tokens.
    """
    if attention.meta.carries != "layers":
        if first:
            return (attention.first(x, mask=mask) if layout is None else attention.first_packed(x, layout)), carry
        return (attention(x, mask=mask) if layout is None else attention.packed(x, layout)), carry
    if layout is None:
        y, carry = attention.carried(x, mask=mask, carry=carry)
        return (y[:, 0] if first else y), carry
    y, carry = attention.carried(layout.unpack(x), mask=layout.mask, carry=carry)
    y = layout.pack(y)
    if first:
        return y[layout.firsts].masked_fill((layout.cu_seqlens.diff() == 0)[:, None], 0), carry
    return y, carry


def carried_by_segments(
    attention: Attention, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None, carry: Any = None
) -> tuple[Float[Tensor, "b n d"], Any]:
    """The output of a causal self slot, read in segments where it carries something from one to the next, and what it
    carries to the row that follows."""
    if attention.meta.carries != "segments":
        return attention(x, mask=mask), carry
    return attention.in_segments(x, mask=mask, carry=carry)


def segment_of(slots: Sequence[Attention]) -> int | None:
    """How many tokens a network of these slots reads at a time; None for whole rows."""
    lengths = {slot.segment for slot in slots if slot.meta.carries == "segments"}
    if len(lengths) > 1:
        raise UsageError(f"The slots of a network read segments of one length, got {sorted(map(str, lengths))}.")
    return next(iter(lengths), None)


def forget(carries: Sequence[Carry | None], rows: Bool[Tensor, " b"]) -> list[Carry | None]:
    """Drop what these rows carry, in every layer."""
    return [None if carry is None else carry.forget(rows) for carry in carries]
