"""Sinkhorn attention: blocks of keys and values are soft-sorted, and a block of queries sees the block sorted to it.

    K'_u = sum_v S_uv K_v      V'_u = sum_v S_uv V_v      y_i = softmax(q_i . [K'_u ; K_u] / sqrt(c)) [V'_u ; V_u]

for a query i in block u, with K_u the `block` keys of block u. S comes from sort logits R_u = p_u W, where p_u is the
mean key of block u: divided by `temperature`, then with rows and columns normalised in turn `iterations` times, in the
log domain (Sinkhorn normalisation), so that S tends to a doubly stochastic matrix. In training Gumbel noise is added to
R.

    net = "linear"      R_u = p_u W, with a column of W for each block of the longest sequence: the paper's
    net = "attention"   R_uv = (mean query of u) . (mean key of v) / sqrt(c): no parameters, no bound on the length
    combine = "concat"  one softmax over sorted and own block;  "sum" adds a softmax over each
    combine = "cut"     SortCut: all queries see the first `cut` sorted blocks and nothing else
    top > 0             no normalisation: the `top` best blocks of each row, each scaled by its share in a softmax

Causal self attention uses only what cannot leak: p_u is the mean of all keys up to the first of block u, only blocks
v < u are sorted to u, and only rows are normalised (a column sum would run over later rows). A learned null block, one
key and one value repeated, precedes the sequence with logit 0, unless `null_block` is off. Cross attention is SortCut
over the context whatever `combine` says, because a target has no block of its own there.

Blocks are counted from the beginning of the row. Padded tokens stay out of means, sums and normalisation, and a
position of a sorted block is hidden if no block that may be sorted there has a real token at it. Paper:
arXiv:2002.11296. Departs from the paper in: means of projected keys, head by head, instead of sums of the layer's
input; the sort network is one linear map.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import groups
from longspan.kernels.block_sparse.extra_keys import block_with_extra_keys
from longspan.kernels.cache import append
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from longspan.kernels.sinkhorn_normalize.reference import row_softmax, top_softmax


@dataclass
class Sorted(DecodeState):
    """Keys and values sorted to each block, and which of them may be seen (None: all)."""

    k: Float[Tensor, "b h g j c"]
    v: Float[Tensor, "b h g j e"]
    visible: Bool[Tensor, "#b #h g j"] | None

    @property
    def shown(self) -> groups.Shown:
        return self.k, self.v, None if self.visible is None else self.visible[:, :, :, None]


@dataclass
class Past(Sorted):
    """What was sorted to the current block of each row, and all keys and values so far, left-aligned."""

    keys: Float[Tensor, "b h t c"]
    values: Float[Tensor, "b h t e"]
    lengths: Int[Tensor, " b"]


class Sinkhorn(HeadwiseAttention):
    meta = AttentionMeta(
        title="Sinkhorn Trans.",
        paper="arXiv:2002.11296",
        family="sorting",
        cost="n^2",
        patterns=ALL_PATTERNS,
        stochastic=True,
        length_bound=True,
        places="positions",
        dropout="weights",
        limit="block=4096, null_block=False",
        remark="CAB's table denies cross attention, which SortCut offers; the code LRA released does not sort.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        block: int = 64,
        net: Literal["linear", "attention"] = "linear",
        combine: Literal["concat", "sum", "cut"] = "concat",
        cut: int = 2,
        top: int = 0,
        iterations: int = 5,
        temperature: float = 0.75,
        gumbel: bool = True,
        null_block: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if min(block, cut, iterations) < 1 or top < 0 or temperature <= 0:
            raise UsageError(
                "sinkhorn needs block, cut and iterations of at least 1, top of at least 0 and a temperature above 0, "
                f"got {block}, {cut}, {iterations}, {top} and {temperature}."
            )
        self.causal = self.pattern is Pattern.CAUSAL_SELF
        if self.causal and combine == "cut":
            raise UsageError("SortCut shows later blocks to earlier queries; as causal_self choose 'concat' or 'sum'.")
        if self.pattern.cross and net == "attention":
            raise UsageError(f"net='attention' compares blocks of one sequence; as {self.pattern} use net='linear'.")
        self.block, self.cut = block, cut if combine == "cut" or self.pattern.cross else 0
        self.combine, self.top, self.iterations, self.temperature = combine, top, iterations, temperature
        self.gumbel, self.nulls = gumbel, max(top, 1) if self.causal and null_block else 0
        self.sort = None
        if net == "linear":
            name = "max_context" if self.pattern.cross else "max_length"
            if (longest := getattr(self, name)) is None:
                raise UsageError(
                    f"sinkhorn sorts among a fixed number of blocks; say how long a sequence may get with {name}=..., "
                    "or choose net='attention' as self attention."
                )
            self.sort = nn.Parameter(torch.randn(heads, self.head_dim, -(-longest // block)))
        self.null_key, self.null_value = (
            nn.Parameter(0.02 * torch.randn(heads, 1, self.head_dim)) if self.nulls else None for _ in "kv"
        )

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        sorted_ = self._sorted(q, k, v, self.null_value, key_mask)
        return self._read(q, k, v, sorted_, key_mask, self.dropout if self.training else 0.0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """What each token adds to each output through both blocks: the output when the values are unit vectors."""
        units = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        return self._read(q, k, units, self._sorted(q, k, units, None, key_mask), key_mask, 0.0)

    def _read(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        sorted_: Sorted,
        key_mask: Bool[Tensor, "b m"] | None,
        dropout: float,
    ) -> Float[Tensor, "b h n e"]:
        """Attention of queries to their sorted and own blocks; with SortCut all see the same."""
        if self.cut:
            all_see = key_mask is None and k.shape[2] > 0
            return groups.attend_groups(q[:, :, None], [sorted_.shown], all_see=all_see, dropout=dropout)[:, :, 0]
        # before the first real token of a row nothing is visible, not even nulls
        begun = key_mask.cumsum(dim=1) > 0 if self.causal and key_mask is not None else None
        return block_with_extra_keys(
            q, k, v, sorted_.k, sorted_.v, block=self._size(k.shape[2]), causal=self.causal, key_mask=key_mask,
            extra_mask=sorted_.visible, sees_extra=begun, separate=self.combine == "sum", dropout=dropout,
        )  # fmt: skip

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> DecodeState | None:
        if self.pattern.cross:
            found = self._sorted(None, k, v, None, key_mask)
            every_row = None if found.visible is None else found.visible.expand(len(k), -1, -1, -1)
            return replace(
                found, visible=every_row
            )  # without a mask it has one row for all, from which no rows can be selected
        if self.sort is None:
            return None  # the state would need the queries of the prefix too
        past = KeyValueCache.of(k, v, key_mask)
        return self._sorted_to_last(past.k, past.v, past.lengths)

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Any
    ) -> tuple[Float[Tensor, "b h e"], DecodeState]:
        if k is None or v is None:
            return groups.attend_groups(q[:, :, None, None], [state.shown])[:, :, 0, 0], state
        t = state.lengths
        keys, values = append(state.keys, k, t), append(state.values, v, t)
        state = replace(state, keys=keys, values=values, lengths=t + 1)
        if bool((t % self.block == 0).any()):  # a new block begins
            state = self._sorted_to_last(keys, values, t + 1)
        place = (t // self.block * self.block)[:, None] + torch.arange(self.block, device=q.device)
        inside = place.clamp(max=keys.shape[2] - 1)[:, None, :, None]
        k, v = (u.take_along_dim(inside, dim=2)[:, :, None] for u in (keys, values))
        own = (k, v, rearrange(place <= t[:, None], "b j -> b 1 1 1 j"))
        y = groups.attend_groups(q[:, :, None, None], [state.shown, own], separate=self.combine == "sum")
        return y[:, :, 0, 0], state

    def _sorted_to_last(
        self, k: Float[Tensor, "b h t c"], v: Float[Tensor, "b h t e"], lengths: Int[Tensor, " b"]
    ) -> Past:
        """What is sorted to the last block of each row, by the mean of the keys up to its first."""
        start = (lengths - 1).clamp(min=0) // self.block * self.block
        later = torch.arange(k.shape[2], device=k.device) > start[:, None]
        mean = at_least_single(k).masked_fill(later[:, None, :, None], 0).sum(dim=2) / (start + 1)[:, None, None]
        keys, values = groups.in_blocks(k, self.block), groups.in_blocks(v, self.block)
        earlier = torch.arange(keys.shape[2], device=k.device) < (start // self.block)[:, None]
        real = earlier[:, :, None].expand(-1, -1, self.block)
        logits = self._by_net(mean[:, :, None], keys.shape[2])
        new = self._sort(logits, earlier[:, None, None], keys, values, real, self.null_value)
        return Past(new.k, new.v, new.visible, k, v, lengths)

    def _size(self, m: int) -> int:
        """The block size: a sequence shorter than a block is one block, but a null block must keep its full length."""
        return self.block if self.nulls or m > self.block else m

    def _sorted(
        self,
        q: Float[Tensor, "b h n c"] | None,
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        null_value: Float[Tensor, "h 1 e"] | None,
        key_mask: Bool[Tensor, "b m"] | None,
    ) -> Sorted:
        """What is sorted to each block, or with SortCut to the first few."""
        size = self._size(k.shape[2])
        if key_mask is not None:
            k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (k, v))
        real, keys, values = groups.real_in_blocks(key_mask, k, size), *(groups.in_blocks(u, size) for u in (k, v))
        u = torch.arange(keys.shape[2], device=k.device)
        allowed = (u < u[:, None] if self.causal else (u >= 0).expand(len(u), -1))[None, None]  # column v to row u
        if real is not None:
            some = real.any(dim=2)
            allowed = allowed & some[:, None, None, :] & (True if self.causal else some[:, None, :, None])
        # causally, blocks before the query's own are complete, and a null block precedes them all
        whole = key_mask is None and self.nulls > 0 if self.causal else real is None and self.top <= len(u)
        with without_autocast(k):  # R
            if self.sort is None and q is not None:
                logits = groups.block_scores(groups.in_blocks(q, size), keys, real, causal=self.causal)
            else:
                mean = groups.means_up_to_blocks if self.causal else groups.block_means
                logits = self._by_net(mean(keys, real), len(u))
        return self._sort(logits, allowed, keys, values, real, null_value, whole=whole)

    def _by_net(self, mean: Float[Tensor, "b h u c"], blocks: int) -> Float[Tensor, "b h u v"]:
        """The logits of each block v for blocks u with this mean key."""
        assert self.sort is not None
        if blocks > self.sort.shape[2]:
            raise UsageError(
                f"This sinkhorn was built for at most {self.sort.shape[2]} blocks of {self.block}, got {blocks}; "
                "build it for a longer sequence, cut the input, or choose net='attention' as self attention."
            )
        with without_autocast(mean):
            return mean @ self.sort[:, :, :blocks].to(mean.dtype)

    def _sort(
        self,
        logits: Float[Tensor, "b h u v"],
        allowed: Bool[Tensor, "#b 1 u v"],
        k: Float[Tensor, "b h v s c"],
        v: Float[Tensor, "b h v s e"],
        real: Bool[Tensor, "#b v s"] | None,
        null_value: Float[Tensor, "h 1 e"] | None,
        *,
        whole: bool = False,
    ) -> Sorted:
        """The sorted blocks, several side by side with `top`; `whole` promises that none of their keys is hidden."""
        if self.nulls:
            logits, allowed = F.pad(logits, (self.nulls, 0)), F.pad(allowed, (self.nulls, 0), value=True)
        if self.training and self.gumbel:
            logits = logits - (-torch.rand_like(logits).clamp(min=1e-20).log()).log()
        logits = logits / self.temperature
        if self.top:
            matrix, support = top_softmax(logits, allowed, self.top)
        else:  # S and its support; one row for each block
            S = row_softmax(logits, allowed) if self.causal else sinkhorn_normalize(logits, allowed, self.iterations)
            matrix, support = S[:, :, :, None], allowed[:, :, :, None]
        if self.cut:
            matrix, support = (groups.first_blocks(u, real, self.cut) for u in (matrix, support))
        together = "b h u r s c -> b h 1 (u r s) c" if self.cut else "b h u r s c -> b h u (r s) c"
        sorted_k = rearrange(groups.mix_blocks(matrix, k, self.null_key, self.nulls), together)
        sorted_v = rearrange(groups.mix_blocks(matrix, v, null_value, self.nulls), together)
        if whole:
            return Sorted(sorted_k, sorted_v, None)
        visible = groups.mixed_mask(support, real, self.nulls, k.shape[3])
        return Sorted(sorted_k, sorted_v, rearrange(visible[..., None], together)[..., 0])
