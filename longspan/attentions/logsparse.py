"""LogSparse Transformer: a query sees itself and the keys at distances 1, 2, 4, 8 ... before it.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))
    A(i) = {j : i - j = 0 or a power of two}
    q_i = sum_{r < kernel} W_q^r x_{i-r}      k_i = sum_{r < kernel} W_k^r x_{i-r}      v_i = W_v x_i

over the real keys: n (log2 n + 1) pairs, and floor(log2 n) + 1 layers connect any two tokens. `local` adds that many of
the last tokens to A(i); with `restart` = L the pattern repeats every L tokens, so i - j is taken modulo L (that is
n / L times the pairs: choose L in proportion to n). Queries and keys come from causal convolutions over `kernel`
tokens, with zeros before the first token and in place of padding; the paper tries 1, 2, 3, 6 and 9. Each tap beyond the
first adds 2 d^2 parameters to those of softmax attention; with one tap there are none. Paper: arXiv:1907.00235. Departs
from the paper in: one tap by default, as compared models have the same size; a non-causal form, which takes |i - j| and
centres the convolution; and the pattern never depends on the current length (in the common port it depends on a length,
see `flow_forecast_logsparse`). There is no cross form: distances between two sequences have no meaning.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, MaskedAttention, Pattern
from longspan.attentions.states import DecodeState, KeyValueCache
from longspan.core.errors import UsageError
from longspan.kernels.diagonals import diagonals, is_short
from longspan.kernels.masked import masked_attention
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import as_operand


@dataclass
class Convolved(KeyValueCache):
    """All keys and values so far, and the last tokens that the convolution still needs, newest first."""

    recent: Float[Tensor, "b taps d"]


class LogSparse(MaskedAttention):
    meta = AttentionMeta(
        title="LogSparse",
        paper="arXiv:1907.00235",
        family="sparse",
        cost="n log n",
        patterns=SELF_PATTERNS,
        places="distances",
        dropout="weights",
        limit="local=4096",
        remark="Causal by definition; seen from both sides, a query takes the powers of two before and after it.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        local: int = 0,
        restart: int | None = None,
        kernel: int = 1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if local < 0 or kernel < 1 or (restart is not None and restart < 1):
            raise UsageError(
                "logsparse needs a local window of 0 tokens, 1 token before a restart and 1 tap at least, got "
                f"local={local}, restart={restart} and kernel={kernel}."
            )
        self.local, self.restart, self.kernel = local, restart, kernel
        self.ahead = 0 if self.pattern.causal else (kernel - 1) // 2  # taps that look ahead
        if kernel > 1:
            self.query, self.key = (nn.Linear(kernel * dim, self.inner, bias=bias) for _ in "qk")

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        near = self._taps(x, mask)
        q, k, v = (self._split(u) for u in (self.query(near), self.key(near), self.value(x)))
        return self._merge(self.attend(q, k, v, key_mask=mask, query_mask=mask))

    first, first_packed = Attention.first, Attention.first_packed  # those that call this class's `forward` and `packed`

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        return super().packed(x, layout) if self.kernel == 1 else Attention.packed(self, x, layout)

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        y = diagonals(q, k, v, self._offsets(k.shape[2]), key_mask=key_mask, dropout=self.active_dropout)
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h out"]:
        offsets = self._offsets(layout.max_seqlen)
        padded = not q.is_cuda and is_short(layout.max_seqlen, offsets)
        if padded or not layout.together:  # gaps put tokens further apart than they are when packed
            return super().attend_packed(q, k, v, layout)
        row = (layout.index // layout.mask.shape[1])[None]
        q, k, v = (rearrange(u, "t h c -> 1 h t c") for u in (q, k, v))
        y = diagonals(q, k, v, offsets, rows=row, dropout=self.active_dropout)
        return rearrange(y, "1 h t e -> t h e")

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b _h n m"]:
        lag = i[:, None, :, None] - j
        return self._sees(lag) & (lag >= 0) if self.pattern.causal else self._sees(lag.abs())

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        return Attention.prefill(self, x, context, mask=mask, context_mask=context_mask)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *_: Any) -> Convolved:
        x, lengths = left_align(x, mask)
        place = lengths[:, None] - 1 - torch.arange(self.kernel - 1, device=x.device)
        recent = F.pad(x, (0, 0, 1, 0)).take_along_dim(place.clamp(min=-1)[..., None] + 1, dim=1)
        k, v = self._split(self.key(self._taps(x, None))), self._split(self.value(x))
        return Convolved.of(k, v, real(lengths, x.shape[1]), recent=recent)

    def step(self, x_t: Float[Tensor, "b d"], state: Convolved) -> tuple[Float[Tensor, "b d"], Convolved]:
        self._needs_decoding()
        taps = torch.cat([x_t[:, None], state.recent.to(x_t.dtype)], dim=1)
        q, k, v = self.query(taps.flatten(1)), self.key(taps.flatten(1)), self.value(x_t)
        q, k, v = (u.unflatten(1, (self.heads, -1)) for u in (q, k, v))
        t, state = state.lengths, state.plus(k, v, recent=taps[:, :-1])
        place = t[:, None] - torch.tensor(self._offsets(state.k.shape[2]), device=t.device)
        k, v = (u.take_along_dim(place.clamp(min=0)[:, None, :, None], dim=2) for u in (state.k, state.v))
        y = masked_attention(q[:, :, None], k, v, (place >= 0)[:, None, None])[:, :, 0]
        return self.out(as_operand(y.flatten(1), self.out.weight)), state

    def _offsets(self, n: int) -> list[int]:
        """i - j for every key that some query of a row of n tokens sees."""
        period = n if self.restart is None or self.restart > n else self.restart
        within = {0, *range(min(self.local, period)), *(2**t for t in range(n.bit_length()) if 2**t < period)}
        past = sorted(start + o for start in range(0, n, period) for o in within if start + o < n)
        return past if self.pattern.causal else [-o for o in past[:0:-1]] + past

    def _sees(self, lag: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        lag = lag if self.restart is None else lag % self.restart
        return (lag & (lag - 1) == 0) | (lag < self.local)

    def _taps(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None) -> Float[Tensor, "b n taps_d"]:
        """Each token with those that the convolution reads along with it, latest first; padding and edges are 0."""
        if self.kernel == 1:
            return x
        n, behind = x.shape[1], self.kernel - 1 - self.ahead
        x = x if mask is None else x.masked_fill(~mask[..., None], 0)
        x = F.pad(x, (0, 0, behind, self.ahead))
        return torch.cat([x[:, start : start + n] for start in range(self.kernel - 1, -1, -1)], dim=-1)
