"""Sparse Transformer: a query sees its neighbourhood and, beyond it, a regular sample of all keys.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))      A(i) = near(i) + far(i)

    kind = "fixed"     near: the block of l tokens that holds i       far: the last `summary` tokens of every block
    kind = "strided"   near: all j with |i - j| < l                   far: all j whose distance to i is a multiple of l

with l = `stride`, over the real keys, and only those up to i when causal; a key in both sets counts once. With l near
sqrt(n) that is n sqrt(n) pairs. By default `stride` is the rounded square root of the maximum length given at
construction, or the paper's 128 if none is given; it never depends on the current sequence. With `bands` = 4 the heads
alternate between four neighbouring groups of summary tokens, counted from the end of the block. `part` selects one of
the two sets, for networks that use them in different layers. Paper: arXiv:1904.10509. Departs from the paper in: one
softmax over both sets in every head, 8 summary tokens (the smallest number in the paper, suited to short blocks), and a
non-causal form, which drops j <= i.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, MaskedAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import block_sparse, sliding_window, strided

STRIDE = 128  # when no maximum length is given


class SparseTransformer(MaskedAttention):
    meta = AttentionMeta(
        title="Sparse Trans.",
        paper="arXiv:1904.10509",
        family="sparse",
        cost="n sqrt n",
        patterns=SELF_PATTERNS,
        length_bound=True,
        places="positions",
        dropout="weights",
        limit="stride=4096",
        remark="LRA ran a causal mask in its encoder and saved no work; here its encoder sees both directions.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        kind: Literal["fixed", "strided"] = "fixed",
        stride: int | None = None,
        summary: int = 8,
        bands: int = 1,
        part: Literal["both", "near", "far"] = "both",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        for name, number in {"stride": stride, "summary": summary, "bands": bands}.items():
            if number is not None and number < 1:
                raise UsageError(f"sparse_transformer needs {name} of at least 1, got {name}={number}.")
        if stride is None:
            stride = STRIDE if self.max_length is None else max(1, round(math.sqrt(self.max_length)))
        self.kind, self.part, self.stride, self.bands = kind, part, stride, bands
        self.summary = min(summary, max(1, stride // bands))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal, rules = self.pattern.causal, {"key_mask": key_mask, "dropout": self.active_dropout}
        if self.kind == "fixed":
            y = self._fixed(q, k, v, causal=causal, **rules)
        elif self.part == "near":
            y = sliding_window(q, k, v, left=self.stride - 1, right=0 if causal else self.stride - 1, **rules)
        else:
            y = strided(q, k, v, stride=self.stride, near=self.part == "both", causal=causal, **rules)
        return y.to(v.dtype) if query_mask is None else y.to(v.dtype).masked_fill(~query_mask[:, None, :, None], 0)

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b _h n m"]:
        i, j = torch.broadcast_tensors(i[:, None, :, None], j)
        if self.kind == "fixed":
            band = torch.arange(self.heads, device=i.device)[:, None, None] % self.bands
            near, far = i // self.stride == j // self.stride, (-1 - j) % self.stride // self.summary == band
        else:
            near, far = (i - j).abs() < self.stride, (i - j) % self.stride == 0
        seen = near if self.part == "near" else far if self.part == "far" else near | far
        return seen & (j <= i) if self.pattern.causal else seen

    def _fixed(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], **rules: Any
    ) -> Float[Tensor, "b h n e"]:
        n = q.shape[2]
        block = self.stride if self.stride < n else n  # min() would stay symbolic in a graph for dynamic lengths
        own = (0, -1 if self.part == "far" else 0)
        summaries = None if self.part == "near" else self._summaries(n, q.device)
        cache_key = ("sparse_transformer", self.stride, self.summary, self.bands, self.part)
        return block_sparse(q, k, v, own, block=block, global_keys=summaries, cache_key=cache_key, **rules)

    def _summaries(self, n: int, device: torch.device) -> Int[Tensor, "1 h t"]:
        """The positions of the summary tokens for each head, or a single set if they are all the same."""
        band = torch.arange(self.heads if self.bands > 1 else 1, device=device) % self.bands
        index = torch.arange(-(-n // self.stride) * self.summary, device=device)  # torch 2.11 does not compile a grid
        block, place = index // self.summary, index % self.summary
        return (block * self.stride + self.stride - 1 - place - band[:, None] * self.summary)[None]
