"""Sinkhorn attention as Long Range Arena released it: nothing is sorted, and every group sees the sum of all groups.

    y_i = softmax_{j in G(i)}(q_i . k_j / sqrt(c)) v_j  +  softmax_s(q_i . K_s w / sqrt(c)) V_s w
    G(i) = {j : j = i mod groups}      K_s = sum_g k_{s groups + g}      V_s likewise, s = 1 ... block

The idea (`sinkhorn`) is a soft permutation of blocks of consecutive tokens. The release reshapes n = block * groups
tokens to (block, groups) instead of (groups, block), so a group is spread over the whole row. Its sort network gives
each group and head a row of logits over groups, from the sum of the group's keys; but the product that should apply the
resulting matrix sums over the groups and over the row separately, which leaves only w, the sum of a row. With
`activation="softmax"`, as released, w is 1 and the network has no effect at all. With "sinkhorn", which the release has
but does not use, w is the row sum after rows and columns were normalised once and clipped to [1/e, e]; this mixes up
heads and groups, as the logits [groups, heads, groups] are split into square matrices in memory order.

The mask is reshaped to (groups, block), so it hides tokens other than padding: -1e10 is added between the s-th and the
t-th token of group g when position g * block + s or g * block + t is padded, and in the second attention when that
holds for every g. A query from which everything is hidden gets the mean of everything, in single precision.

`block` is 50 in the release, and 64 for Image and Pathfinder; the network covers `max_blocks` groups, which is too few
for ListOps but harmless there. Code: google-research/long-range-arena, models/sinkhorn_transformer. Departs from it in:
a row that is not a multiple of `block` long, where the release fails, is padded with zeros that are never seen.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single, without_autocast

HIDDEN = -1e10  # added to logits, which next to it are all equal in single precision


class LRASinkhorn(HeadwiseAttention):
    meta = AttentionMeta(
        title="Sinkhorn Trans. (LRA)",
        paper="arXiv:2011.04006",
        family="sorting",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        version=2,  # changed the gradients of queries from which everything is hidden
        dropout="weights",
        fidelity=True,
        remark="Does not sort: each strided group attends to itself and to the sum of all groups.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        block: int = 50,
        max_blocks: int = 25,
        activation: Literal["softmax", "sinkhorn"] = "softmax",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(block, max_blocks) < 1:
            raise UsageError(f"lra_sinkhorn needs block and max_blocks of at least 1, got {block} and {max_blocks}.")
        self.block, self.activation = block, activation
        self.sort_kernel = nn.Parameter(self.head_dim**-0.5 * torch.randn(self.head_dim, max_blocks))
        self.sort_bias = nn.Parameter(torch.zeros(max_blocks))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        n, fill = q.shape[2], -q.shape[2] % self.block
        q, k, v = (rearrange(F.pad(u, (0, 0, 0, fill)), "b h (s g) c -> b h g s c", s=self.block) for u in (q, k, v))
        share = self._share(k)
        keys, values = ((reduce(u, "b h g s c -> b h 1 s c", "sum") * share).to(u.dtype) for u in (k, v))
        own, summed = self._biases(n, k, key_mask)
        y = self._look(q, k, v, own) + self._look(q, keys, values, summed)
        return rearrange(y, "b h g s e -> b h (s g) e")[:, :, :n]

    def _share(self, k: Float[Tensor, "b h g s c"]) -> Float[Tensor, "b h g 1 1"]:
        """What remains of the sort: the row sums of a matrix for each head; after a softmax, 1 up to rounding."""
        groups = k.shape[2]
        with without_autocast(k):
            kernel, bias = (at_least_single(u[..., :groups]) for u in (self.sort_kernel, self.sort_bias))
            sums = at_least_single(k).sum(dim=3)
            logits = einsum(sums, kernel.to(sums.dtype), "b h g c, c f -> b g h f") + bias
            if self.activation == "softmax":
                rows = logits.softmax(dim=-1).sum(dim=-1)
            else:
                if groups > len(self.sort_bias):
                    raise UsageError(
                        f"This lra_sinkhorn sorts at most {len(self.sort_bias)} groups, got {groups}; raise max_blocks."
                    )
                square = logits.reshape(-1, groups, groups)
                square = square - square.logsumexp(dim=2, keepdim=True)
                square = square - square.logsumexp(dim=1, keepdim=True)
                rows = square.clamp(-1, 1).exp().sum(dim=-1).reshape(logits.shape[:3])
        return rearrange(rows, "b g h -> b h g 1 1")

    def _biases(
        self, n: int, k: Float[Tensor, "b h g s c"], key_mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "#b 1 g s s"] | None, Float[Tensor, "#b 1 1 s s"] | None]:
        """What is added to the logits of both attentions; None if nothing is hidden."""
        groups, size = k.shape[2:4]
        fill = groups * size - n
        if key_mask is None and not fill:
            return None, None
        filled = rearrange(torch.arange(groups * size, device=k.device) >= n, "(t g) -> 1 1 g 1 t", g=groups)
        own = k.new_zeros(1, 1, groups, size, size)
        if key_mask is not None:
            real = rearrange(F.pad(key_mask, (0, fill), value=True), "b (g s) -> b 1 g s", g=groups)
            own = own.masked_fill(~(real[..., :, None] & real[..., None, :]), HIDDEN)
        summed = own.amax(dim=2, keepdim=True).masked_fill(filled.all(dim=2, keepdim=True), -torch.inf)
        return own.masked_fill(filled, -torch.inf), summed

    def _look(
        self,
        q: Float[Tensor, "b h g s c"],
        k: Float[Tensor, "b h g s c"],
        v: Float[Tensor, "b h g s e"],
        bias: Float[Tensor, "#b 1 #g s s"] | None,
    ) -> Float[Tensor, "b h g s e"]:
        if bias is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.active_dropout)
        # Written out: the backward pass of fused kernels needs the log-sum-exp, which is lost next to 1e10.
        p = torch.softmax(at_least_single(q @ k.mT / q.shape[-1] ** 0.5) + bias, dim=-1)
        return F.dropout(p, self.active_dropout).to(v.dtype) @ v
