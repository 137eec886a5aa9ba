"""LogSparse attention as in its common port: early rows see everything, and a row may miss itself.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))

With N = `max_length`, s = `sub_length` and L = ceil(log2 s), A(i) is everything up to i while i < 2 L floor(N / s).
Afterwards it is, for the anchors a = i, i - s, i - 2 s ..., the last L tokens up to a and a - L + 1 - 2^r for r < L
where that is at most s before a. The first anchor with fewer than L tokens up to it sees 0 ... a - 1, without a, and
ends the list.

The paper (`logsparse`) has only the powers of two, at every position. Here the rule depends on the length that the
layer was built for. No code by the authors was found. Code: AIStream-Peelout/flow-forecast,
flood_forecast/transformer_xl/transformer_bottleneck.py. Departs from it in: the convolution before queries and keys is
left out, padding is hidden, and a row without any visible key outputs 0.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import AttentionMeta, MaskedAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import masked_attention


class FlowForecastLogSparse(MaskedAttention):
    meta = AttentionMeta(
        title="LogSparse (Flow Forecast)",
        paper="arXiv:1907.00235",
        family="sparse",
        cost="n^2",
        patterns=(Pattern.CAUSAL_SELF,),
        length_bound=True,
        places="positions",
        dropout="weights",
        fidelity=True,
        remark="Early rows see everything, how many depends on the greatest length; the matrix of scores is whole.",
    )

    table: Bool[Tensor, "longest longest"]

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, sub_length: int | None = None, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        longest = self._longest("max_length")
        sub_length = longest if sub_length is None else sub_length
        if sub_length < 1:
            raise UsageError(f"flow_forecast_logsparse needs sub_length of at least 1, got {sub_length}.")
        rows = [seen_from(i, longest, sub_length) for i in range(longest)]
        table = torch.zeros(longest, longest, dtype=torch.bool)
        for i, seen in enumerate(rows):
            table[i, seen] = True
        self.register_buffer("table", table, persistent=False)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        self._check_room(k.shape[2], len(self.table), "tokens")
        visible, scale = self.visible_pairs(q, k, key_mask), v.shape[-1] ** -0.5  # c is the width of values in the code
        return masked_attention(q, k, v, visible, dropout=self.active_dropout, scale=scale)

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b _h n m"]:
        self._check_room(len(j), len(self.table), "tokens")
        return self.table[i[:, None, :, None], j]


def seen_from(i: int, longest: int, sub_length: int) -> list[int]:
    """The keys of query i.

    >>> seen_from(9, 10, 10)
    [2, 4, 5, 6, 7, 8, 9]
    >>> seen_from(19, 20, 16)
    [0, 1, 2, 3, 8, 12, 14, 15, 16, 17, 18, 19]
    """
    window = math.ceil(math.log2(sub_length))
    if longest // sub_length * 2 * window > i:
        return list(range(i + 1))
    seen: set[int] = set()
    for anchor in range(i, -1, -sub_length):
        start = anchor - window + 1
        if start < 0:
            seen.update(range(anchor))
            break
        jumps = (2**r for r in range(window) if anchor - start + 2**r <= sub_length)
        seen.update(range(start, anchor + 1), (start - jump for jump in jumps if start >= jump))
    return sorted(seen)
