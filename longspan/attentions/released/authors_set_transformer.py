"""Induced set attention as its authors released it: two whole blocks, each with a residual and a feed-forward layer.

    MAB(X, Y) = O + relu(O W_o)      O = Q + softmax(Q K^T / sqrt(d)) V      Q = X W_q, K = Y W_k, V = Y W_v
    y = MAB(x, MAB(I, source))

head by head, with d the width of all heads together; the residual is the projected query, and there is no output
projection. `norm=True` puts a layer norm after O and one after the block. Unlike there, padding is hidden. The
attention alone is `set_transformer`. Code: juho-lee/set_transformer, modules.py. Departs from it in: a projection back
to the token width if the width of all heads differs from it.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.masked import masked_attention


class MAB(nn.Module):
    """A multihead attention block."""

    def __init__(self, dim_q: int, dim_k: int, dim: int, heads: int, *, norm: bool = False, bias: bool = True):
        super().__init__()
        self.heads = heads
        self.fc_q = nn.Linear(dim_q, dim, bias=bias)
        self.fc_k, self.fc_v = nn.Linear(dim_k, dim, bias=bias), nn.Linear(dim_k, dim, bias=bias)
        self.fc_o = nn.Linear(dim, dim, bias=bias)
        self.ln0, self.ln1 = (nn.LayerNorm(dim) if norm else nn.Identity() for _ in range(2))

    def forward(
        self, x: Float[Tensor, "b n q"], y: Float[Tensor, "b m k"], mask: Bool[Tensor, "b m"] | None = None
    ) -> Float[Tensor, "b n d"]:
        q, k, v = (
            rearrange(project(u), "b n (h c) -> b h n c", h=self.heads)
            for project, u in ((self.fc_q, x), (self.fc_k, y), (self.fc_v, y))
        )
        o = self.ln0(rearrange(self.attend(q, k, v, mask), "b h n c -> b n (h c)"))
        return self.ln1(o + self.fc_o(o).relu())

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m c"],
        mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n c"]:
        visible = torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if mask is None else mask
        return q + masked_attention(q * self.heads**-0.5, k, v, visible[:, None, None])


class AuthorsSetTransformer(Attention):
    meta = AttentionMeta(
        title="Set Transformer (authors)",
        paper="arXiv:1810.00825",
        family="landmark",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS),
        fidelity=True,
        remark="Two blocks with residuals and feed-forward layers of their own, and so twice the parameters.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        points: int = 32,
        norm: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if points < 1:
            raise UsageError(f"authors_set_transformer needs at least one inducing point, got points={points}.")
        self.inducing = nn.Parameter(torch.empty(1, points, self.inner))
        nn.init.xavier_uniform_(self.inducing)
        self.mab0 = MAB(self.inner, dim, self.inner, heads, norm=norm, bias=bias)
        self.mab1 = MAB(dim, self.inner, self.inner, heads, norm=norm, bias=bias)
        self.narrow = nn.Linear(self.inner, dim, bias=bias) if self.inner != dim else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        return self.narrow(self.induced(x, *self._source(x, context, mask, context_mask)))

    def induced(
        self, x: Float[Tensor, "b n d"], source: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"] | None
    ) -> Float[Tensor, "b n inner"]:
        return self.mab1(x, self.mab0(self.inducing.expand(len(x), -1, -1), source, mask))
