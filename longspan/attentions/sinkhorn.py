"""Sinkhorn attention: blocks of keys and values are sorted softly, and a block of queries sees what was sorted to it.

    K'_u = sum_v S_uv K_v      V'_u = sum_v S_uv V_v      y_i = softmax(q_i . [K'_u ; K_u] / sqrt(c)) [V'_u ; V_u]

for a query i in block u, with K_u the `block` keys of block u. S comes from sort logits R_u = p_u W, where p_u is the
mean key of block u: divided by `temperature`, then `iterations` times rows and columns normalised in turn, in the log
domain (Sinkhorn balancing), so that S tends to a doubly stochastic matrix. In training Gumbel noise is added to R.

    net = "linear"      R_u = p_u W, with a column of W for each block of the longest sequence: the paper's
    net = "attention"   R_uv = (mean query of u) . (mean key of v) / sqrt(c): no parameters, no bound on the length
    combine = "concat"  one softmax over sorted and own block;  "sum" adds a softmax over each
    combine = "cut"     SortCut: all queries see the first `cut` sorted blocks and nothing else
    top > 0             no balancing: the `top` best blocks of each row, each scaled by its share in a softmax

Causal self attention keeps what cannot leak: p_u is the mean of all keys up to the first of block u, only blocks v < u
are sorted to u, and rows alone are normalised (a column sum would run over later rows). A learned null block, one key
and one value repeated, stands before the sequence with logit 0, unless `null_block` is off. Cross attention is SortCut
over the context whatever `combine` says, because a target has no block of its own in there.

Blocks are counted from the beginning of the row. Padded tokens stay out of means, sums and balancing, and a place of a
sorted block is hidden where no block that may have come there has a real token. Paper: arXiv:2002.11296. Departs from
the paper in: means of projected keys, head by head, instead of sums of the layer's input; one linear map sorts.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import left_align
from longspan.kernels.paired_blocks import is_faster, paired_blocks
from longspan.kernels.pooling import running_mean
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.running_sum import running_sum
from longspan.kernels.sinkhorn_normalize import balance


@dataclass
class Shown(DecodeState):
    """Keys and values shown to each of g groups of queries, and which of them the queries may see (None: all)."""

    k: Float[Tensor, "b h g j c"]
    v: Float[Tensor, "b h g j e"]
    visible: Bool[Tensor, "#b #h g #i j"] | None


@dataclass
class Blocks(DecodeState):
    """All keys and values so far, left-aligned, the sum of the keys, and what was sorted to the present block."""

    k: Float[Tensor, "b h t c"]
    v: Float[Tensor, "b h t e"]
    total: Float[Tensor, "b h c"]
    lengths: Int[Tensor, " b"]
    sorted_k: Float[Tensor, "b h 1 j c"]
    sorted_v: Float[Tensor, "b h 1 j e"]
    visible: Bool[Tensor, "b h 1 1 j"]


class Sinkhorn(HeadwiseAttention):
    meta = AttentionMeta(
        title="Sinkhorn Trans.",
        paper="arXiv:2002.11296",
        family="sorting",
        cost="n^2",
        patterns=ALL_PATTERNS,
        length_bound=True,
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
        causal = self.pattern is Pattern.CAUSAL_SELF
        if causal and combine == "cut":
            raise UsageError("SortCut shows later blocks to earlier queries; as causal_self choose 'concat' or 'sum'.")
        if self.pattern.cross and net == "attention":
            raise UsageError(f"net='attention' compares blocks of one sequence; as {self.pattern} use net='linear'.")
        self.block, self.cut = block, cut if combine == "cut" or self.pattern.cross else 0
        self.combine, self.top, self.iterations, self.temperature = combine, top, iterations, temperature
        self.gumbel, self.nulls = gumbel, max(top, 1) if causal and null_block else 0
        self.sort = self._sort_net() if net == "linear" else None
        self.null_key = nn.Parameter(0.02 * torch.randn(heads, 1, self.head_dim)) if self.nulls else None
        self.null_value = nn.Parameter(0.02 * torch.randn(heads, 1, self.head_dim)) if self.nulls else None

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        return self._attend(q, k, v, self.null_value, key_mask, self.dropout if self.training else 0.0)

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """What each token adds to each output by way of both blocks: the output when the values are unit vectors."""
        units = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        nothing = None if self.null_value is None else units.new_zeros(self.heads, 1, k.shape[2])
        return self._attend(q, k, units, nothing, key_mask, 0.0)

    def _attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        null_value: Float[Tensor, "h 1 e"] | None,
        key_mask: Bool[Tensor, "b m"] | None,
        dropout: float,
    ) -> Float[Tensor, "b h n e"]:
        keys, values, real = self._in_blocks(k, key_mask), self._in_blocks(v, key_mask), self._real(k, key_mask)
        queries = None if self.pattern.cross else self._in_blocks(q, None)
        logits, allowed = self._logits(queries, keys, real), self._allowed(keys, real)
        causal = self.pattern is Pattern.CAUSAL_SELF
        if causal:  # blocks before the own one are whole, and before all of them there is a null
            complete = key_mask is None and self.nulls > 0
        else:
            complete = real is None and self.top <= keys.shape[2]
        sorted_ = self._sort(logits, allowed, keys, values, real, null_value, complete=complete)
        all_see = key_mask is None and k.shape[2] > 0  # there is a token in every block
        if queries is None or self.cut:
            return self._read(q[:, :, None], [sorted_], dropout, all_see)[:, :, 0]
        begun = None  # before the first real token of a row there is nothing to see, not even nulls
        if causal and key_mask is not None and real is not None:
            begun = real.flatten(1).cumsum(dim=1) > 0
        tensors, size = (q, k, v, sorted_.k, sorted_.v), keys.shape[3]
        if self.combine == "concat" and not dropout and is_faster(size, *tensors):
            seen = None if sorted_.visible is None else sorted_.visible[:, :, :, 0]
            begun = None if begun is None else begun[:, : q.shape[2]]
            return paired_blocks(*tensors, block=size, causal=causal, key_mask=key_mask, other_mask=seen, begun=begun)
        own = None if real is None else rearrange(real, "b g j -> b 1 g 1 j")
        if causal:
            i = torch.arange(keys.shape[3], device=q.device)
            earlier = (i <= i[:, None])[None, None, None]
            own = earlier.expand(-1, -1, keys.shape[2], -1, -1) if own is None else own & earlier
        if begun is not None and sorted_.visible is not None:
            begun = rearrange(begun, "b (g i) -> b 1 g i 1", g=keys.shape[2])
            sorted_ = replace(sorted_, visible=sorted_.visible & begun)
        y = self._read(queries, [sorted_, Shown(keys, values, own)], dropout, all_see and self.combine != "sum")
        return rearrange(y, "b h g s e -> b h (g s) e")[:, :, : q.shape[2]]

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> DecodeState | None:
        if self.pattern.cross:
            keys, values, real = self._in_blocks(k, key_mask), self._in_blocks(v, key_mask), self._real(k, key_mask)
            return self._sort(self._logits(None, keys, real), self._allowed(keys, real), keys, values, real, None)
        if self.sort is None:
            return None  # it needs the queries of the prefix as well
        keys, lengths = left_align(rearrange(k, "b h m c -> b m h c"), key_mask)
        values, _ = left_align(rearrange(v, "b h m e -> b m h e"), key_mask)
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        b, h, j = len(k), self.heads, self.block * max(self.top, 1)
        empty = (k.new_zeros(b, h, 1, j, k.shape[3]), v.new_zeros(b, h, 1, j, v.shape[3]))
        hidden = torch.zeros(b, h, 1, 1, j, dtype=torch.bool, device=k.device)
        state = Blocks(keys, values, at_least_single(keys).sum(dim=2), lengths, *empty, hidden)
        if keys.shape[2] == 0:
            return state
        start = (lengths - 1).clamp(min=0) // self.block * self.block
        later = torch.arange(keys.shape[2], device=k.device) > start[:, None]
        total = at_least_single(keys).masked_fill(later[:, None, :, None], 0).sum(dim=2)
        return self._sort_again(state, total / (start + 1)[:, None, None], start // self.block, lengths > 0)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: Any,
    ) -> tuple[Float[Tensor, "b h e"], DecodeState]:
        if k is None or v is None:
            return self._read(q[:, :, None, None], [state], 0.0)[:, :, 0, 0], state
        t = state.lengths
        keys, values = append(state.k, k, t), append(state.v, v, t)
        state = replace(state, k=keys, v=values, total=state.total + k, lengths=t + 1)
        begins = t % self.block == 0
        if bool(begins.any()):
            state = self._sort_again(state, state.total / (t + 1)[:, None, None], t // self.block, begins)
        place = (t // self.block * self.block)[:, None] + torch.arange(self.block, device=q.device)
        inside = place.clamp(max=keys.shape[2] - 1)[:, None, :, None]
        k, v = (u.take_along_dim(inside, dim=2)[:, :, None] for u in (keys, values))
        own = Shown(k, v, rearrange(place <= t[:, None], "b j -> b 1 1 1 j"))
        y = self._read(q[:, :, None, None], [Shown(state.sorted_k, state.sorted_v, state.visible), own], 0.0)
        return y[:, :, 0, 0], state

    def _sort_again(
        self, state: Blocks, mean: Float[Tensor, "b h c"], block: Int[Tensor, " b"], which: Bool[Tensor, " b"]
    ) -> Blocks:
        """What is sorted to this block of each row, for the rows in `which`; `mean` is that of the keys up to it."""
        k, v = self._in_blocks(state.k, None, self.block), self._in_blocks(state.v, None, self.block)
        earlier = torch.arange(k.shape[2], device=k.device) < block[:, None]
        real = earlier[:, :, None].expand(-1, -1, self.block)
        logits = self._by_net(mean[:, :, None], k.shape[2])
        new = self._sort(logits, earlier[:, None, None], k, v, real, self.null_value)
        which = which[:, None, None, None, None]
        assert new.visible is not None
        return replace(
            state,
            sorted_k=torch.where(which, new.k.to(state.sorted_k.dtype), state.sorted_k),
            sorted_v=torch.where(which, new.v.to(state.sorted_v.dtype), state.sorted_v),
            visible=torch.where(which, new.visible, state.visible),
        )

    def _sort_net(self) -> nn.Parameter:
        name, longest = ("max_context", self.max_context) if self.pattern.cross else ("max_length", self.max_length)
        if longest is None:
            raise UsageError(
                f"sinkhorn sorts among a fixed number of blocks; say how long a sequence may get with {name}=..., "
                "or choose net='attention' as self attention."
            )
        return nn.Parameter(torch.randn(self.heads, self.head_dim, -(-longest // self.block)))

    def _in_blocks(
        self, u: Float[Tensor, "b h m c"], mask: Bool[Tensor, "b m"] | None, size: int | None = None
    ) -> Float[Tensor, "b h g s c"]:
        """Consecutive blocks, with zeros for padded tokens and to fill up the last one."""
        size = self._size(u.shape[2]) if size is None else size
        u = u if mask is None else u.masked_fill(~mask[:, None, :, None], 0)
        blocks = -(-u.shape[2] // size)
        missing = blocks * size - u.shape[2]
        u = F.pad(u, (0, 0, 0, missing)) if missing else u
        return u.unflatten(2, (blocks, size))

    def _real(self, k: Float[Tensor, "b h m c"], mask: Bool[Tensor, "b m"] | None) -> Bool[Tensor, "#b g s"] | None:
        """Which places of the blocks hold a real token: one row for all where none is padded, None where all do."""
        m, size = k.shape[2], self._size(k.shape[2])
        blocks = -(-m // size)
        if mask is None and blocks * size == m:
            return None
        mask = torch.ones(1, m, dtype=torch.bool, device=k.device) if mask is None else mask
        return F.pad(mask, (0, blocks * size - m), value=False).unflatten(1, (blocks, size))

    def _size(self, m: int) -> int:
        """A sequence shorter than a block is one block; only the null block must keep its full length."""
        return self.block if self.nulls or m > self.block else m

    def _allowed(self, k: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Bool[Tensor, "#b 1 u v"]:
        """Which block v may be sorted to which block u."""
        u = torch.arange(k.shape[2], device=k.device)
        causal = self.pattern is Pattern.CAUSAL_SELF
        among = (u < u[:, None] if causal else (u >= 0).expand(len(u), -1))[None, None]
        if real is None:
            return among
        some = real.any(dim=2)
        return among & some[:, None, None, :] & (True if causal else some[:, None, :, None])

    def _logits(
        self, q: Float[Tensor, "b h g s c"] | None, k: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None
    ) -> Float[Tensor, "b h u v"]:
        """How well block v suits block u."""
        causal = self.pattern is Pattern.CAUSAL_SELF
        summary = _means_up_to_block if causal else _means
        with without_autocast(k):
            if self.sort is not None:
                return self._by_net(summary(k, real), k.shape[2])
            assert q is not None
            queries = summary(_without_padding(q, real), real)
            keys = _sums(_without_padding(_running_means(k, real), real)) if causal else _means(k, real)
            return queries @ keys.mT / k.shape[-1] ** 0.5

    def _by_net(self, mean: Float[Tensor, "b h u c"], blocks: int) -> Float[Tensor, "b h u v"]:
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
        complete: bool = False,
    ) -> Shown:
        """The sorted blocks, several side by side with `top`; with SortCut the first few rows are shown to everyone.

        `complete` says that nothing of them is hidden from anybody.
        """
        if self.nulls:
            logits, allowed = F.pad(logits, (self.nulls, 0)), F.pad(allowed, (self.nulls, 0), value=True)
        if self.training and self.gumbel:
            logits = logits - (-torch.rand_like(logits).clamp(min=1e-20).log()).log()
        matrix, support = self._matrix(logits / self.temperature, allowed)
        real = torch.ones(1, *k.shape[2:4], dtype=torch.bool, device=k.device) if real is None else real
        if self.cut:
            first = (~real.any(dim=2)).long().argsort(dim=1, stable=True)[:, None, : self.cut, None, None]
            # not take_along_dim, whose sizes a graph compiled for any length would take for its own
            matrix, support = (u.gather(2, first.expand(*u.shape[:2], -1, *u.shape[3:])) for u in (matrix, support))
        join = "b h u r s c -> b h 1 (u r s) c" if self.cut else "b h u r s c -> b h u (r s) c"
        sorted_k, sorted_v = (
            rearrange(self._mixed(matrix, u, null), join) for u, null in ((k, self.null_key), (v, null_value))
        )
        if complete:
            return Shown(sorted_k, sorted_v, None)
        real = F.pad(real, (0, 0, self.nulls, 0), value=True)
        visible = einsum(support.to(matrix.dtype), real.to(matrix.dtype), "b h u r v, b v s -> b h u r s") > 0
        join = "b h u r s -> b h 1 1 (u r s)" if self.cut else "b h u r s -> b h u 1 (r s)"
        return Shown(sorted_k, sorted_v, rearrange(visible, join))

    def _mixed(
        self,
        matrix: Float[Tensor, "b h u r v"],
        blocks: Float[Tensor, "b h _ s c"],
        null: Float[Tensor, "h 1 c"] | None,
    ) -> Float[Tensor, "b h u r s c"]:
        """Sums of blocks with these shares, of which the first belong to null blocks, where there are any."""
        shares = matrix[..., self.nulls :].flatten(2, 3).to(blocks.dtype)
        mixed = (shares @ blocks.flatten(3)).unflatten(3, blocks.shape[3:]).unflatten(2, matrix.shape[2:4])
        if null is None:
            return mixed
        of_nulls = matrix[..., : self.nulls].sum(dim=-1)[..., None, None]  # of one and the same token, however many
        return mixed + (of_nulls * rearrange(null, "h 1 c -> h 1 1 1 c")).to(mixed.dtype)

    def _matrix(
        self, logits: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"]
    ) -> tuple[Float[Tensor, "b h u r v"], Bool[Tensor, "#b #h u r v"]]:
        """S, with r rows for each block u, and where it is not 0 by construction."""
        if self.top:
            return best(logits, allowed, self.top)
        if self.pattern is Pattern.CAUSAL_SELF:
            return _shares(logits, allowed)[:, :, :, None], allowed[:, :, :, None]
        return balance(logits, allowed, self.iterations)[:, :, :, None], allowed[:, :, :, None]

    def _read(
        self, q: Float[Tensor, "b h g i c"], shown: list[Shown], dropout: float, all_see: bool = False
    ) -> Float[Tensor, "b h g i e"]:
        """Each group of queries attends to what it is shown: all of it in one softmax, or one after the other.

        `all_see` says that nobody is shown nothing at all.
        """
        if self.combine == "sum" and len(shown) > 1:
            return self._read(q, shown[:1], dropout) + self._read(q, shown[1:], dropout)
        k, v = (us[0] if len(us) == 1 else torch.cat(us, dim=3) for us in ([x.k for x in shown], [x.v for x in shown]))
        visible, (b, h) = None, q.shape[:2]
        if any(x.visible is not None for x in shown):
            masks = [
                k.new_ones(1, 1, 1, 1, x.k.shape[3], dtype=torch.bool) if x.visible is None else x.visible
                for x in shown
            ]
            common = torch.broadcast_shapes(*(mask.shape[:4] for mask in masks))
            visible = torch.cat([mask.expand(*common, -1) for mask in masks], dim=-1)
            visible = (visible if common[:2] == (1, 1) else visible.expand(b, h, -1, -1, -1)).flatten(0, 1)
        # Groups as heads of one row each: so they lie in memory already.
        q, k, v = (u.flatten(0, 1) for u in (q, k, v))
        if visible is None or all_see:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)
        else:
            y = masked_attention(q, k, v, visible, dropout=dropout)
        return y.unflatten(0, (b, h))


def best(
    logits: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b 1 u v"], top: int
) -> tuple[Float[Tensor, "b h u r v"], Bool[Tensor, "b h u r v"]]:
    """The best entries of each row, one after another, each with its share among those that were left; and where."""
    left, values, places = allowed.expand_as(logits), [], []
    for _ in range(top):
        share = _shares(logits, left)
        place = left & torch.zeros_like(left).scatter(3, share.argmax(dim=3, keepdim=True), True)
        values.append(share.masked_fill(~place, 0))
        places.append(place)
        left = left & ~place
    return torch.stack(values, dim=3), torch.stack(places, dim=3)


def _shares(logits: Float[Tensor, "b h u v"], allowed: Bool[Tensor, "#b #h u v"]) -> Float[Tensor, "b h u v"]:
    """The softmax of each row over what is allowed, 0 where nothing is."""
    nothing = torch.finfo(logits.dtype).min / 4
    return logits.masked_fill(~allowed, nothing).softmax(dim=3).masked_fill(~allowed, 0)


def _means(u: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g c"]:
    """The mean of the real tokens of each block."""
    if real is None:
        return _sums(u) / u.shape[3]
    return _sums(u) / rearrange(real.sum(dim=2).clamp(min=1), "b g -> b 1 g 1")


def _means_up_to_block(u: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g c"]:
    """The mean of all real tokens up to the first of each block."""
    earlier = running_sum(F.pad(_sums(u[:, :, :-1]), (0, 0, 1, 0)))
    if real is None:
        count = torch.arange(1, u.shape[2] * u.shape[3] + 1, u.shape[3], device=u.device)[:, None]
    else:
        count = F.pad(real[:, :-1].sum(dim=2).cumsum(dim=1), (1, 0)) + real[..., 0]
        count = rearrange(count.clamp(min=1), "b g -> b 1 g 1")
    return (earlier + u[:, :, :, 0]) / count


def _running_means(u: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g s c"]:
    """At each place the mean of all real tokens up to it."""
    mask = None if real is None else real.flatten(1).expand(len(u), -1)
    return running_mean(u.flatten(2, 3), mask=mask).unflatten(2, u.shape[2:4])


def _without_padding(u: Float[Tensor, "b h g s c"], real: Bool[Tensor, "#b g s"] | None) -> Float[Tensor, "b h g s c"]:
    return u if real is None else u.masked_fill(~rearrange(real, "b g s -> b 1 g s 1"), 0)


def _sums(u: Float[Tensor, "b h g s c"]) -> Float[Tensor, "b h g c"]:
    return u.sum(dim=3, dtype=torch.promote_types(u.dtype, torch.float32))
