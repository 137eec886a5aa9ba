"""ABC, attention with bounded-memory control: keys and values are pooled into a few slots, and queries attend to these.

    K~ = softmax_j(k_j A)^T k      V~ = softmax_j(v_j B)^T v      y_i = softmax_slots(q_i . K~ / sqrt(c)) V~

with A and B [c, slots] shared by the heads, over the real keys j. In causal self attention each position has the slots
of its own prefix, so the last row equals that of the non-causal form:

    K~_t = sum_{j <= t} exp(k_j A) k_j / sum_{j <= t} exp(k_j A)      V~_t likewise

`control="separate"` (A for keys from keys, B for values from values) is how CAB runs ABC_MLP; `control="shared"` is the
paper's: one weight exp(k_j A) for both memories. CAB's code defaults to 16 slots; its tasks use 16 or 64. Paper:
arXiv:2110.02488. Departs from the paper in: the controls are computed from projected keys and values, head by head,
instead of from the layer's input, and a prefix is always normalised as a whole (the paper can also be read as
normalising each token only by the sum up to that token, which makes the memory grow with the logarithm of the length).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory import logits, mean, merge, pool
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class SlotSums(DecodeState):
    """Weighted sums with the sum of weights as last column, all relative to the slot's largest logit so far."""

    keys: Float[Tensor, "b h r c_plus_1"]
    values: Float[Tensor, "b h r e_plus_1"]
    largest_key: Float[Tensor, "b h r 1"]
    largest_value: Float[Tensor, "b h r 1"]


class ABC(HeadwiseAttention):
    meta = AttentionMeta(
        title="ABC",
        paper="arXiv:2110.02488",
        family="bounded memory",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
        remark="CAB's released causal code omits the sum over the past; here each position sees its whole prefix.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        slots: int = 16,
        control: Literal["separate", "shared"] = "separate",
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if slots < 1:
            raise UsageError(f"ABC needs at least one slot, got slots={slots}.")
        self.control_key = nn.Parameter(torch.empty(self.head_dim, slots))
        nn.init.xavier_uniform_(self.control_key, gain=2**-0.5)
        if control == "separate":
            self.control_value = nn.Parameter(torch.empty(self.head_dim, slots))
            nn.init.xavier_uniform_(self.control_value, gain=2**-0.5)
        else:
            self.register_parameter("control_value", None)

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
        return bounded_memory.attend(q, k, v, self.control_key, self.control_value, causal=causal, key_mask=key_mask)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> SlotSums:
        with without_autocast(k):
            k, v = at_least_single(k), at_least_single(v)
            a_key, a_value = logits(k, v, self.control_key, self.control_value, key_mask)
            (keys, largest_key), (values, largest_value) = pool(a_key, k), pool(a_value, v)
        return SlotSums(keys, values, largest_key, largest_value)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: SlotSums,
    ) -> tuple[Float[Tensor, "b h e"], SlotSums]:
        if k is not None and v is not None:
            new = self.begin(k[:, :, None], v[:, :, None])
            keys, largest_key = merge(state.keys, state.largest_key, new.keys, new.largest_key)
            values, largest_value = merge(state.values, state.largest_value, new.values, new.largest_value)
            state = SlotSums(keys, values, largest_key, largest_value)
        with without_autocast(q):
            keys, values = mean(state.keys), mean(state.values)
            y = F.scaled_dot_product_attention(q[:, :, None].to(keys.dtype), keys, values)
        return y[:, :, 0].to(q.dtype), state
