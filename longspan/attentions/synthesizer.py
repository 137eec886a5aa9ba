"""Synthesizer: the scores of attention are made without comparing tokens, from places or from one token at a time.

    y_i = sum_j p_ij v_j      p_i = softmax_j(R_ij)

over the real keys j (and j <= i when causal). Each head has its own R, with a column for each place of the longest
sequence:

    kind = "random"              R is a matrix of parameters
    kind = "factorised_random"   R = A B^T, with A and B of `rank` columns
    kind = "dense"               R_i = relu(x_i W1) W2 + b2, a number for each place, from token i alone
    kind = "factorised_dense"    R_ij = a_i[j mod r] b_i[j div r], a_i and b_i each made as in "dense", r near sqrt(m)

`dot` mixes in dot products, R <- alpha R + (1 - alpha) q k^T / sqrt(c), with a learned alpha that starts at a half.
Random scores are drawn with a variance of 1; `frozen` ones stay as they were drawn. In cross attention rows belong to
places (or tokens) of the target and columns to places of the context. A full random matrix is far beyond Long Range
Arena's limit of 10 % more parameters; the default, two numbers times `rank` for each place and head, stays below it for
ListOps and not in the tiny networks of Pathfinder.

Where R is the same for every row of a batch, and nothing is padded, so are the weights: they are computed once, and a
dropped weight is dropped in all rows. R = A B^T alone is exact attention with A for queries and B for keys: where that
is faster and no weight is dropped torch's fused kernel computes it, in memory linear in the length. Paper:
arXiv:2005.00743. Departs from the paper in: both factors of the factorised dense kind come from one hidden layer, and a
length that is not a product uses the first places of a longer one.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.factor_attention import factor_attention, score_attention
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class ValueCache(DecodeState):
    """Values (and keys, where they are compared), which of them are real, and the place of the next query."""

    v: Float[Tensor, "b h m e"]
    k: Float[Tensor, "b h m c"] | None
    visible: Bool[Tensor, "b m"]
    place: Int[Tensor, " b"]


class Synthesizer(Attention):
    meta = AttentionMeta(
        title="Synthesizer",
        paper="arXiv:2005.00743",
        family="learned scores",
        cost="n^2",
        patterns=ALL_PATTERNS,
        length_bound=True,
        dropout="weights",
        remark="LRA's numbers are those of a full random matrix added to the dot product: lra_synthesizer.",
    )
    scores: Tensor
    row_factors: Tensor
    column_factors: Tensor

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
        self.kind, self.dot = kind, dot
        self.value, self.out = nn.Linear(dim, self.inner, bias=bias), nn.Linear(self.inner, dim, bias=bias)
        if dot:
            self.query, self.key = nn.Linear(dim, self.inner, bias=bias), nn.Linear(dim, self.inner, bias=bias)
            self.shares = nn.Parameter(torch.zeros(2))
        if "random" in kind:
            self.rows = self._longest("max_length")
        self.columns = self._longest("max_context" if self.pattern.cross else "max_length")
        if kind == "random":
            self._draw("scores", (heads, self.rows, self.columns), 1.0, frozen)
        elif kind == "factorised_random":  # so that their products have a variance of 1 as well
            self._draw("row_factors", (heads, self.rows, rank), rank**-0.25, frozen)
            self._draw("column_factors", (heads, self.columns, rank), rank**-0.25, frozen)
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
        """The outputs for the tokens x, which stand at the first places, from all tokens of the source."""
        k, v = self._keys_and_values(source)
        n, m = x.shape[1], source.shape[1]
        how = {"causal": self.pattern is Pattern.CAUSAL_SELF, "dropout": self.dropout if self.training else 0.0}
        if self.kind == "factorised_random" and not self.dot:
            self._check_room(n, m)
            y = factor_attention(self.row_factors[:, :n], self.column_factors[:, :m], v, key_mask, **how)
        else:
            y = score_attention(self._scores(x, slice(n), k, m), v, key_mask, **how)
        return self._merge(y)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], ValueCache]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        (source, visible), (aligned, place) = self._source(x, context, mask, context_mask), left_align(x, mask)
        if not self.pattern.cross:
            source, visible = aligned, real(place, x.shape[1])
        elif visible is None:
            visible = torch.ones(source.shape[:2], dtype=torch.bool, device=x.device)
        k, v = self._keys_and_values(source)
        return y, ValueCache(v, k, visible, place)

    def step(self, x_t: Float[Tensor, "b d"], state: ValueCache) -> tuple[Float[Tensor, "b d"], ValueCache]:
        self._needs_decoding()
        if not self.pattern.cross:
            k, v = self._keys_and_values(x_t[:, None])
            v = append(state.v, v[:, :, 0], state.place)
            k = append(state.k, k[:, :, 0], state.place) if k is not None and state.k is not None else None
            state = replace(state, v=v, k=k, visible=real(state.place + 1, v.shape[2]))
        elif "random" in self.kind:
            self._check_room(int(state.place.max()) + 1, state.v.shape[2])
        scores = self._scores(x_t[:, None], state.place, state.k, state.v.shape[2])
        y = self._merge(score_attention(scores, state.v, state.visible))[:, 0]
        return y, replace(state, place=state.place + 1)

    def _keys_and_values(
        self, source: Float[Tensor, "b m d"]
    ) -> tuple[Float[Tensor, "b h m c"] | None, Float[Tensor, "b h m e"]]:
        return self._split(self.key(source)) if self.dot else None, self._split(self.value(source))

    def _scores(
        self,
        x: Float[Tensor, "b n d"],
        places: slice | Int[Tensor, " b"],
        k: Float[Tensor, "b h m c"] | None,
        m: int,
    ) -> Float[Tensor, "#b h n m"]:
        """R for these tokens, which stand at these places (one place for each row, or the same range for all)."""
        self._check_room(x.shape[1], m)
        if "dense" in self.kind:
            hidden = self._split(self.hidden(x).relu())
            first, *second = (at_least_single(to(hidden)) for to in self.to_places)
            scores = einsum(second[0], first, "b h n i, b h n j -> b h n i j").flatten(3) if second else first
            scores = scores[..., :m]
        else:
            with without_autocast(x):
                if self.kind == "random":
                    rows = self.scores[:, places, :m]
                else:
                    rows = self.row_factors[:, places] @ self.column_factors[:, :m].mT
            scores = rows[None] if isinstance(places, slice) else rearrange(rows, "h b m -> b h 1 m")
        if k is None:
            return scores
        q, (synthetic, compared) = self._split(self.query(x)), self.shares.softmax(dim=0)
        return synthetic * scores + compared * at_least_single(q @ k.mT) / q.shape[-1] ** 0.5

    def _check_room(self, n: int, m: int) -> None:
        if m > self.columns or ("random" in self.kind and n > self.rows):
            longest = f"{self.columns} keys" + (f" and {self.rows} queries" if "random" in self.kind else "")
            raise UsageError(
                f"This synthesizer was built for at most {longest}, got {m} keys and {n} queries; "
                "build it for more or cut the input."
            )

    def _split(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        return rearrange(x, "b n (h c) -> b h n c", h=self.heads)

    def _merge(self, y: Float[Tensor, "b h n e"]) -> Float[Tensor, "b n d"]:
        return self.out(rearrange(y, "b h n e -> b n (h e)").to(self.out.weight.dtype))

    def _longest(self, name: Literal["max_length", "max_context"]) -> int:
        longest = getattr(self, name)
        if longest is None:
            raise UsageError(f"synthesizer has scores for each place; say how many there may be with {name}=...")
        return longest

    def _draw(self, name: str, shape: tuple[int, ...], std: float, frozen: bool) -> None:
        table = std * torch.randn(shape)
        if frozen:
            self.register_buffer(name, table)
        else:
            self.register_parameter(name, nn.Parameter(table))


class ToPlaces(nn.Module):
    """A linear map from the channels of each head to places."""

    def __init__(self, heads: int, channels: int, places: int):
        super().__init__()
        self.weight = nn.Parameter(channels**-0.5 * torch.randn(heads, channels, places))
        self.bias = nn.Parameter(torch.zeros(heads, 1, places))

    def forward(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n m"]:
        return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype)
