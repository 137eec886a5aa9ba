"""Softmax attention: every query looks at every key it may see, weighted by how well they agree.

    y_i = sum_j p_ij v_j      p_i = softmax_j(q_i . k_j / sqrt(c))

over the real keys j (and j <= i when causal). A row with nothing to see outputs 0. `kernel` chooses the implementation:
torch's fused kernels (`auto` lets torch choose, and `used` says what it chose) or `plain`, the formula itself. Paper:
arXiv:1706.03762. Departs from the paper in: nothing.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, MaskedAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.context_parallel import all_tokens, first_token
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import Layout
from longspan.kernels.sdpa import BACKENDS, chosen, flash_fits, flash_ragged, refused

Kernel = Literal["auto", "flash", "efficient", "cudnn", "math", "plain"]


class Softmax(MaskedAttention):
    meta = AttentionMeta(
        title="Softmax",
        paper="arXiv:1706.03762",
        family="exact",
        cost="n^2",
        patterns=ALL_PATTERNS,
        exact=True,
        rowwise=True,
        dropout="weights",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, kernel: Kernel = "auto", **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        self.kernel = kernel

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        causal = self.pattern is Pattern.CAUSAL_SELF
        dropout = self.active_dropout
        if self.kernel == "plain":
            return F.dropout(self.weights(q, k, key_mask=key_mask), dropout) @ v
        if key_mask is None:
            return self._fused(F.scaled_dot_product_attention, q, k, v, dropout_p=dropout, is_causal=causal)
        return self._fused(masked_attention, q, k, v, visible=self.visible_pairs(q, k, key_mask), dropout=dropout)

    @property
    def shares_context(self) -> bool:
        return self.pattern is Pattern.CAUSAL_SELF

    def attend_shared(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]
    ) -> Float[Tensor, "b h n e"]:
        """Each process keeps its queries, gathers all keys and values, and attends to those up to its own."""
        seen = first_token(q.shape[2]) + q.shape[2]
        k, v = (all_tokens(u)[:, :, :seen] for u in (k, v))
        mask = causal_lower_right(q.shape[2], seen)
        return self._fused(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, dropout_p=self.active_dropout)

    def used(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> str:
        """Which kernel computes `attend` for these inputs: flash, efficient, cudnn, math or plain."""
        if self.kernel == "plain":
            return "plain"
        visible = None if key_mask is None else self.visible_pairs(q, k, key_mask)
        causal = key_mask is None and self.pattern is Pattern.CAUSAL_SELF
        options = {"causal": causal, "dropout": self.active_dropout, "kernel": self.kernel}
        found = chosen(q, k, v, visible=visible, **options)
        if found is None:
            raise self._refusal(q, masked=key_mask is not None)
        return found

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h e"]:
        if not self._ragged_kernel_fits(q, v):
            return super().attend_packed(q, k, v, layout)
        return flash_ragged(q, k, v, layout, **self._how)

    def attend_first_packed(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "b h e"]:
        if not self._ragged_kernel_fits(q, v):
            return super().attend_first_packed(q, k, v, layout)
        one_each = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
        return flash_ragged(q, k, v, layout, **self._how, queries=(one_each, 1))

    @property
    def _how(self) -> dict[str, Any]:
        return {"causal": self.pattern is Pattern.CAUSAL_SELF, "dropout": self.active_dropout}

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b 1 n m"]:
        i = i[:, None, :, None]
        return j <= i if self.pattern is Pattern.CAUSAL_SELF else (j >= 0).expand(*i.shape[:3], -1)

    def _ragged_kernel_fits(self, q: Float[Tensor, "queries h c"], v: Float[Tensor, "t h e"]) -> bool:
        return self.kernel in ("auto", "flash") and flash_fits(q, v)

    def _fused(
        self, attention: Callable[..., Tensor], q: Float[Tensor, "b h n c"], *rest: Tensor, **how: Any
    ) -> Tensor:
        """Compute with the requested kernel; raise an error if it cannot handle these inputs."""
        if self.kernel not in BACKENDS:
            return attention(q, *rest, **how)
        try:
            with sdpa_kernel(BACKENDS[self.kernel]):
                return attention(q, *rest, **how)
        except RuntimeError as error:
            if not refused(error):
                raise
            raise self._refusal(q, masked="visible" in how) from error

    def _refusal(self, q: Float[Tensor, "b h n c"], *, masked: bool) -> UsageError:
        return UsageError(
            f"softmax(kernel={self.kernel}) cannot run on {q.device.type} in {q.dtype} with heads of {q.shape[-1]} "
            f"and {'a mask' if masked else 'no mask'}; choose another kernel, or auto."
        )
