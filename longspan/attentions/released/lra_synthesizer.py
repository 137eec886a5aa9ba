"""Synthesizer as Long Range Arena released and ran it: a full random matrix of scores added to the dot product.

    y_i = sum_j p_ij v_j      p_i = softmax_j(R_ij + q_i . k_j / sqrt(c))

Each head of each layer has its own R. The idea (`synthesizer`) is to do without the dot product, or to weight the two;
the release adds them, because it never reads the settings that say otherwise. Its other settings are here as well:

    kind = "random"              R is a matrix of parameters, [longest, longest]: far more than 10 % of a network
    kind = "factorised_random"   R = A B, with `rank` columns
    kind = "dense"               R_i = relu(x_i W1 + b1) W2 + b2 in each head, with one W2 and b2 for all heads
    dot = False                  leaves out queries and keys, and with them the mask: padding is then seen by everyone

The dense scores lie in memory as [position, head, column] and are read as [head, position, column] without a transpose:
row i of head h is that of token (h n + i) div heads and head (h n + i) mod heads. With the dot product -1e10 is added
to a score when its query or its key is padding, and the score is lost next to it in single precision: a padded query
gets the mean of everything, and its scores are differentiated at equal weights.

Code: google-research/long-range-arena, models/synthesizer. Departs from it in: nothing known.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single

HIDDEN = -1e10


class LRASynthesizer(Attention):
    meta = AttentionMeta(
        title="Synthesizer (LRA)",
        paper="arXiv:2011.04006",
        family="learned scores",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        version=2,  # changed the gradients of padded queries
        length_bound=True,
        dropout="weights",
        fidelity=True,
        remark="Ordinary attention with a learned matrix added to its scores, far beyond the limit on parameters.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        kind: Literal["random", "factorised_random", "dense"] = "random",
        rank: int = 32,
        dot: bool = True,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if rank < 1:
            raise UsageError(f"lra_synthesizer needs factors of at least 1 column, got rank={rank}.")
        self.longest, self.kind, self.dot = self._longest("max_length"), kind, dot
        self.value, self.out = nn.Linear(dim, self.inner, bias=bias), nn.Linear(self.inner, dim, bias=bias)
        if dot:
            self.query, self.key = nn.Linear(dim, self.inner, bias=bias), nn.Linear(dim, self.inner, bias=bias)
        if kind == "random":
            self.random = _glorot(heads, self.longest, self.longest)
        elif kind == "factorised_random":
            self.random1, self.random2 = _glorot(heads, self.longest, rank), _glorot(heads, rank, self.longest)
        else:
            self.hidden = nn.Linear(dim, self.inner)
            self.to_places = nn.Linear(self.inner // heads, self.longest)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        q, k = (self._split(self.query(x)), self._split(self.key(x))) if self.dot else (None, None)
        return self._merge(self.attend(self.scores(x), self._split(self.value(x)), q, k, mask))

    def scores(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "#b h n n"]:
        """R, from positions or from tokens."""
        n = x.shape[1]
        self._check_room(n, self.longest, "tokens")
        if self.kind == "random":
            return self.random[None, :, :n, :n]
        if self.kind == "factorised_random":
            return (self.random1[:, :n] @ self.random2[:, :, :n])[None]
        hidden = rearrange(self.hidden(x).relu(), "b n (h c) -> b n h c", h=self.heads)
        return self.to_places(hidden)[..., :n].reshape(len(x), self.heads, n, n)  # in memory order

    def attend(
        self,
        scores: Float[Tensor, "#b h n n"],
        v: Float[Tensor, "b h n e"],
        q: Float[Tensor, "b h n c"] | None,
        k: Float[Tensor, "b h n c"] | None,
        mask: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h n e"]:
        scores = at_least_single(scores)
        if q is not None and k is not None:
            scores = scores + q @ k.mT / q.shape[-1] ** 0.5
            if mask is not None:
                both = mask[:, None, :, None] & mask[:, None, None, :]
                # a sum in single precision: the score itself is lost next to 1e10, its derivative is not
                scores = torch.where(both, scores, HIDDEN + (scores - scores.detach()))
        weights = F.dropout(scores.softmax(dim=-1), self.dropout if self.training else 0.0)
        return weights.to(v.dtype) @ v


def _glorot(heads: int, rows: int, columns: int) -> nn.Parameter:
    """Glorot uniform as in the release, which counts the heads among inputs and outputs."""
    bound = (6 / (heads * (rows + columns))) ** 0.5
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))
