"""Transformer-XL: softmax attention with relative positions, over a segment and a memory of earlier segments.

    y_i = sum_j softmax_j(s_ij) v_j      s_ij = ((q_i + u) . k_j + (q_i + w) . r_{i-j}) / sqrt(c)      r_d = W_r rho(d)

with rho(d) the sines and then the cosines of a distance, u and w learned for each head. Keys and values come from the
segment and the `memory` tokens before it, which are this layer's earlier inputs, without gradients: `carried` passes
them on. `forward` computes a segment without a memory. A language model reads a row in segments of `segment` tokens (0:
whole rows). With `same_length` every query sees as many keys, the last `memory` up to its own. Causal self attention is
the paper's; noncausal_self uses signed distances, as XLNet does, with the memory on the left. Two sequences have no
distances between them, so there are no cross patterns. Compared with softmax attention it adds W_r [dim, inner], u and
w: 8.4 % of an encoder block. Paper: arXiv:1901.02860. Departs from the paper in: u and w belong to each layer (the
option `untie_r` of the released code), and a network's own positions are not removed.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, Pattern
from longspan.attentions.relative import RelativeAttention, counts, rows, segments
from longspan.attentions.states import Memory
from longspan.core.errors import UsageError
from longspan.kernels.packing import last_before


class TransformerXL(RelativeAttention):
    meta = AttentionMeta(
        title="Transformer-XL",
        paper="arXiv:1901.02860",
        family="recurrence",
        cost="n^2",
        patterns=SELF_PATTERNS,
        positions=True,
        places="distances",
        dropout="weights",
        carries="segments",
        remark="Linear in a text that is read in segments; CAB's table counts one segment.",
    )
    carry_type = Memory

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        memory: int = 512,
        segment: int = 512,
        same_length: bool = False,
        **shell: Any,
    ):
        if memory < 0 or segment < 0 or (same_length and not memory):
            raise UsageError(
                f"Transformer-XL remembers 0 or more tokens and reads 0 or more at a time, got memory={memory} and "
                f"segment={segment}; with same_length a query sees `memory` keys, at least 1."
            )
        super().__init__(dim, heads, pattern, reach=memory if same_length else None, **shell)
        self.memory, self.segment = memory, segment or None

    def carried(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        carry: Memory | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory]:
        y = self(x, mask=mask) if carry is None else self.attend_after(x, mask, carry.x, carry.mask)
        return y, Memory.after(carry, x, mask, self.memory)

    def in_segments(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        carry: Memory | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory]:
        """All segments at once, as rows of a batch: the carry is just the input of earlier segments."""
        b, n, _ = x.shape
        length, before = self.segment or n, 0 if carry is None else carry.x.shape[1]
        each, real = segments(x, mask, length)
        whole = Memory.whole(carry, x.detach(), mask)
        ends = counts(whole.mask, before, length)[:, :-1]
        widest = before + (n - 1) // length * length
        past, place = last_before(whole.x, whole.mask, ends, min(self.memory, widest))
        y = self.attend_after(each, real, past.flatten(0, 1), (place >= 0).flatten(0, 1))
        return rows(y, b, n), Memory.after(carry, x.detach(), mask, self.memory)
