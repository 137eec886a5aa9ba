"""SAC: a recurrent predictor chooses a few edges for each token, and attention runs only along these edges.

    h_i = LSTM(x_i, h_{i-1})      s_ij = h_i . (W x_j + D_{j-i}) / sqrt(r)      E(i) = i and the `edges` largest s_ij
    y_i = sum_{j in E(i)} p_ij v_j      p_i = softmax_{j in E(i)}(q_i . k_j / sqrt(c))

over the real tokens, and only those before i when causal. The predictor is r = `width` channels wide and visits tokens
in order, so h_i depends on nothing after i; heads share its edges. D has a row for each distance up to 16, the last
also for larger ones. While training, its loss is the cross-entropy of softmax_j(s_ij) with the weights that exact
attention would give, the mean over heads: it learns to point at what queries attend to. Its
4 r (d + r + 2) + r d + 33 r parameters have no other gradient. Attention is linear in the number of tokens, but the
predictor compares all pairs, some queries at a time, and visits tokens one after the other. Decoding reruns the
history. Paper: arXiv:2003.09833. Departs from the paper in: a narrow predictor, as compared models have the same size;
the same number of edges for every token, the best ones, in token order (the paper draws them one by one, in any order,
which is possible only in encoders); and the loss, where the paper uses the task reward with REINFORCE. There is no
cross form: the graph covers a single sequence.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.edge_predictor import best_edges, edge_loss
from longspan.kernels.lstm import lstm
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import real, real_first
from longspan.kernels.precision import without_autocast

FARTHEST = 16  # largest distance with a row of its own


class Reader(nn.Module):
    """An LSTM with parameters named and initialised like those of `nn.LSTM`, which torch.compile does not support."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0 = (
            nn.Parameter(torch.empty(4 * width, *inputs).uniform_(-(width**-0.5), width**-0.5))
            for inputs in ((dim,), (width,), (), ())
        )

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n r"]:
        return lstm(F.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0), self.weight_hh_l0)


class SAC(Attention):
    meta = AttentionMeta(
        title="SAC",
        paper="arXiv:2003.09833",
        family="learned sparsity",
        cost="n^2",
        patterns=SELF_PATTERNS,
        positions=True,
        dropout="weights",
        auxiliary_loss=True,
        limit="edges=8192",
        remark="CAB's table says O(n), which is the attention alone: the predictor of its edges compares all pairs.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        edges: int = 16,
        width: int = 32,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if edges < 1 or width < 1:
            raise UsageError(f"sac needs at least 1 edge a token and a width of 1, got edges={edges}, width={width}.")
        self.edges = edges
        self.query, self.key, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in "qkv")
        self.out = nn.Linear(self.inner, dim, bias=bias)
        self.reader = Reader(dim, width)
        self.pointer = nn.Linear(dim, width, bias=False)
        self.distance = nn.Parameter(torch.randn(2 * FARTHEST + 1, width))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        if mask is None:
            return self._along_edges(x, x.new_ones(x.shape[:2], dtype=torch.bool))
        order = real_first(mask)[..., None].expand_as(x)
        x = x.masked_fill(~mask[..., None], 0).gather(1, order)  # take_along_dim recompiles for each length
        y = self._along_edges(x, real(mask.sum(dim=1), x.shape[1]))
        return torch.zeros_like(y).scatter(1, order, y)

    def _along_edges(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        learns = self.training and self.auxiliary_terms is not None
        with torch.set_grad_enabled(learns), without_autocast(x):
            predictor, causal = self._predictor(x.detach()), self.pattern.causal
            seen = best_edges(*predictor, mask, self.edges, causal=causal)
            loss = edge_loss(*predictor, q, k, mask, causal=causal) if learns else None
        y = masked_attention(q, k, v, seen[:, None], dropout=self.active_dropout)
        y = self._merge(y.masked_fill(~mask[:, None, :, None], 0))
        return y if loss is None else self.with_auxiliary(y, loss)

    def _predictor(
        self, x: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b n r"], Float[Tensor, "b n r"], Float[Tensor, "b n distances"]]:
        """h, W x and h D, for contiguous tokens."""
        x = x.to(self.distance.dtype)
        h = self.reader(x)
        return h, self.pointer(x), h @ self.distance.T
