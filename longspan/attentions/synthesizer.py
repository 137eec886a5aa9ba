"""Synthesizer: attention scores are computed without comparing tokens, from positions or from one token at a time.

    y_i = sum_j p_ij v_j      p_i = softmax_j(R_ij)

over the real keys j (and j <= i when causal). Each head has its own R, with a column for each position:

    kind = "random"              R is a matrix of parameters
    kind = "factorised_random"   R = A B^T, with A and B of `rank` columns
    kind = "dense"               R_i = relu(x_i W1) W2 + b2, a number for each place, from token i alone
    kind = "factorised_dense"    R_ij = a_i[j mod r] b_i[j div r], a_i and b_i each made as in "dense", r near sqrt(m)

`dot` mixes in dot products, R <- alpha R + (1 - alpha) q k^T / sqrt(c), with a learned alpha that starts at a half.
Random scores are drawn with a variance of 1; `frozen` ones stay as they were drawn. In cross attention rows belong to
positions (or tokens) of the target and columns to positions of the context. A full random matrix far exceeds Long Range
Arena's limit of 10 % more parameters; the default stays below it for ListOps, but not in the tiny networks of
Pathfinder. Without padding random weights are the same for every row of a batch, including which are dropped.

Paper: arXiv:2005.00743. Departs from the paper in: both factors of the factorised dense kind come from one hidden
layer, and a length that does not factorise uses the first positions of a longer one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.factor_attention import factor_attention, score_attention
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class ContextCache(KeyValueCache):
    """Keys and values of a context, position by position; `lengths` counts the queries so far."""

    visible: Bool[Tensor, "b m"] | None


class Synthesizer(Attention):
    meta = AttentionMeta(
        title="Synthesizer",
        paper="arXiv:2005.00743",
        family="learned scores",
        cost="n^2",
        patterns=ALL_PATTERNS,
        length_bound=True,
        places="positions",
        dropout="weights",
        remark="LRA's numbers are those of a full random matrix added to the dot product: lra_synthesizer.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        kind: Literal["random", "factorised_random", "dense", "factorised_dense"] = "factorised_random",
        rank: int = 8,
        dot: bool = False,
        frozen: bool = False,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if rank < 1:
            raise UsageError(f"synthesizer needs factors of at least 1 column, got rank={rank}.")
        if frozen and "dense" in kind:
            raise UsageError(f"frozen is for random scores, got kind={kind!r}; leave it off or choose a random kind.")
        self.kind, self.dot, table = kind, dot, nn.Buffer if frozen else nn.Parameter
        self.value, self.out = nn.Linear(dim, self.inner, bias=bias), nn.Linear(self.inner, dim, bias=bias)
        if dot:
            self.query, self.key = nn.Linear(dim, self.inner, bias=bias), nn.Linear(dim, self.inner, bias=bias)
            self.shares = nn.Parameter(torch.zeros(2))
        self.rows: Any = self._longest("max_length") if "random" in kind else None  # dense rows have no table
        self.columns = self._longest("max_context" if self.pattern.cross else "max_length")
        if kind == "random":
            self.scores = table(torch.randn(heads, self.rows, self.columns))
        elif kind == "factorised_random":  # so that their products have variance 1 too
            self.row_factors = table(rank**-0.25 * torch.randn(heads, self.rows, rank))
            self.column_factors = table(rank**-0.25 * torch.randn(heads, self.columns, rank))
        else:
            self.hidden = nn.Linear(dim, self.inner, bias=bias)
            channels, fold = self.inner // heads, math.isqrt(self.columns - 1) + 1
            sizes = [self.columns] if kind == "dense" else [fold, -(-self.columns // fold)]
            self.to_places = nn.ModuleList(ToPlaces(heads, channels, size) for size in sizes)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        return self._mix(x, *self._source(x, context, mask, context_mask))

    def first(self, x: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b d"]:
        return self._mix(x[:, :1], x, mask)[:, 0]

    def first_packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "b d"]:
        return self.first(layout.unpack(x), mask=layout.mask)

    def _mix(
        self, x: Float[Tensor, "b n d"], source: Float[Tensor, "b m d"], key_mask: Bool[Tensor, "b m"] | None
    ) -> Float[Tensor, "b n d"]:
        """The outputs for the tokens x, which are at the first positions, from all tokens of the source."""
        (k, v), n, m = self._keys_and_values(source), x.shape[1], source.shape[1]
        how = {"causal": self.pattern is Pattern.CAUSAL_SELF, "dropout": self.active_dropout}
        self._check_room(m, self.columns, "keys")
        self._check_room(n, self.rows, "queries")
        if self.kind == "factorised_random" and not self.dot:
            y = factor_attention(self.row_factors[:, :n], self.column_factors[:, :m], v, key_mask, **how)
        else:
            y = score_attention(self._scores(x, slice(n), k), v, key_mask, **how)
        return self._merge(y)

    def _state_after(
        self, x: Float[Tensor, "b n d"], mask: Any, context: Any = None, context_mask: Any = None
    ) -> KeyValueCache:
        source, visible = self._source(x, context, mask, context_mask)
        k, v = self._keys_and_values(source)
        if not self.pattern.cross:
            return KeyValueCache.of(k, v, mask)
        return ContextCache(k, v, left_align(x, mask)[1], visible)

    def step(self, x_t: Float[Tensor, "b d"], state: KeyValueCache) -> tuple[Float[Tensor, "b d"], KeyValueCache]:
        self._needs_decoding()
        place = state.lengths
        if isinstance(state, ContextCache):
            if self.rows is not None:
                self._check_room(int(place.max()) + 1, self.rows, "queries")
            state, visible = replace(state, lengths=place + 1), state.visible
        else:
            k, v = self._keys_and_values(x_t[:, None])
            state = state.plus(k[:, :, 0], v[:, :, 0])
            visible = real(state.lengths, state.v.shape[2])
        self._check_room(state.v.shape[2], self.columns, "keys")
        scores = self._scores(x_t[:, None], place, state.k)
        return self._merge(score_attention(scores, state.v, visible))[:, 0], state

    def _keys_and_values(self, source: Float[Tensor, "b m d"]) -> tuple[Tensor, Tensor]:
        """Keys [b h m c], with no channels if there are no dot products, and values [b h m e]."""
        v = self._split(self.value(source))
        return self._split(self.key(source)) if self.dot else v[..., :0], v

    def _scores(
        self, x: Float[Tensor, "b n d"], places: slice | Int[Tensor, " b"], k: Float[Tensor, "b h m c"]
    ) -> Float[Tensor, "#b h n m"]:
        """R for these tokens at these positions (one position for each row, or the same range for all)."""
        m = k.shape[2]
        if "dense" in self.kind:
            hidden = self._split(self.hidden(x).relu())
            first, *second = (at_least_single(to(hidden)) for to in self.to_places)
            scores = einsum(second[0], first, "b h n i, b h n j -> b h n i j").flatten(3) if second else first
            scores = scores[..., :m]
        else:
            full = self.kind == "random"
            with without_autocast(x):
                R = self.scores[:, places, :m] if full else self.row_factors[:, places] @ self.column_factors[:, :m].mT
            scores = R[None] if isinstance(places, slice) else rearrange(R, "h b m -> b h 1 m")
        if not self.dot:
            return scores
        q, (synthetic, compared) = self._split(self.query(x)), self.shares.softmax(dim=0)
        return synthetic * scores + compared * at_least_single(q @ k.mT) / q.shape[-1] ** 0.5


class ToPlaces(nn.Module):
    """A linear map from the channels of each head to positions."""

    def __init__(self, heads: int, channels: int, places: int):
        super().__init__()
        self.weight = nn.Parameter(channels**-0.5 * torch.randn(heads, channels, places))
        self.bias = nn.Parameter(torch.zeros(heads, 1, places))

    def forward(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n m"]:
        return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype)
