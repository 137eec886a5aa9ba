"""DPFP: linear attention with a deterministic, parameter-free projection into a larger space with few active features.

    y_i = phi(q_i) S / (phi(q_i) z + eps sqrt(c))      S = sum_j phi(k_j) v_j^T      z = sum_j phi(k_j)
    phi(x) = [u * roll(u, 1), ..., u * roll(u, nu)]    u = relu([x, -x])

over the real keys j, in causal self attention over j <= i; `roll` is cyclic over the 2 c entries of u, so phi has 2 c
nu of them. A query that shares no active feature with any key outputs 0. As in the authors' code, eps is added to
weights that are divided by sqrt(c).

`update="delta"` lets the memory of causal self attention overwrite what it holds for a key, to the degree set by a
gate:

    S_t = S_{t-1} + beta_t phi'(k_t) (v_t - S_{t-1}^T phi'(k_t))^T      y_t = S_t^T phi'(q_t)      phi' = phi / sum(phi)

with beta_t = sigmoid(w x_t + b), one for each head, and no denominator. The other patterns have no order of tokens, and
keep the sums. It has the same parameters as softmax attention, with the delta rule (dim + 1) heads more. Paper:
arXiv:2102.11174. Departs from the paper in: features that are all 0 stay 0 instead of being divided by 0.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, AttentionMeta, GatedValue, HeadwiseAttention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels import feature_map
from longspan.kernels.context_parallel import sum_before
from longspan.kernels.delta_rule import delta_rule, step
from longspan.kernels.linear_attention import final_state, linear_attention, linear_attention_step
from longspan.kernels.precision import at_least_single, without_autocast


@dataclass
class Memory(DecodeState):
    """S, with z as its last column where there is one."""

    memory: Float[Tensor, "b h r e_"]


class DPFP(HeadwiseAttention):
    meta = AttentionMeta(
        title="DPFP",
        paper="arXiv:2102.11174",
        family="kernel",
        cost="n",
        rowwise=True,
        patterns=ALL_PATTERNS,
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        nu: int = 2,
        update: Literal["sum", "delta"] = "sum",
        eps: float = 1e-5,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, **shell)
        if not 1 <= nu < 2 * self.head_dim:  # a roll by 2 c would be the identity
            raise UsageError(
                f"dpfp rolls the {2 * self.head_dim} entries of a head by 1 to nu, got nu={nu}; "
                f"choose 1 to {2 * self.head_dim - 1}."
            )
        if eps <= 0:
            raise UsageError(f"dpfp divides by at least eps, got eps={eps}; choose a positive number.")
        self.nu = nu
        self.delta = update == "delta" and self.pattern is Pattern.CAUSAL_SELF
        if self.delta:
            self.value = GatedValue(dim, self.inner, heads, bias=self.value.bias is not None)
        self._eps = eps * self.head_dim**0.5

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e_"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        if self.delta:
            return self._written(q, k, v, key_mask)[0].to(v.dtype)
        phi_q, phi_k = feature_map.dpfp(q, self.nu), feature_map.dpfp(k, self.nu)
        causal = self.pattern is Pattern.CAUSAL_SELF
        return linear_attention(phi_q, phi_k, v, causal=causal, key_mask=key_mask, eps=self._eps)

    @property
    def shares_context(self) -> bool:
        return self.pattern is Pattern.CAUSAL_SELF and not self.delta

    def attend_shared(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]
    ) -> Float[Tensor, "b h n e"]:
        """The sums over earlier tokens come from the preceding processes."""
        phi_q, phi_k = feature_map.dpfp(q, self.nu), feature_map.dpfp(k, self.nu)
        return linear_attention(
            phi_q, phi_k, v, causal=True, eps=self._eps, initial_state=sum_before(final_state(phi_k, v))
        )

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e_"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Memory:
        if self.delta:
            return Memory(self._written(k, k, v, key_mask)[1])
        return Memory(final_state(self.features(k), v, key_mask=key_mask))

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e_"] | None,
        state: Memory,
    ) -> tuple[Float[Tensor, "b h e"], Memory]:
        phi_q, phi_k = (None if x is None else self.features(x[:, :, None])[:, :, 0] for x in (q, k))
        assert phi_q is not None
        if not self.delta:
            y, memory = linear_attention_step(phi_q, phi_k, v, state.memory, eps=self._eps)
            return y.to(q.dtype), Memory(memory)
        assert phi_k is not None
        assert v is not None
        with without_autocast(q):
            v = at_least_single(v)
            y, memory = step(phi_q, phi_k, v[..., :-1], v[..., -1].sigmoid(), state.memory)
        return y.to(q.dtype), Memory(memory)

    def features(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n r"]:
        """phi in float32 or better; phi' for the delta rule."""
        phi = feature_map.dpfp(at_least_single(x), self.nu)
        if self.delta:
            total = phi.sum(dim=-1, keepdim=True)
            phi = phi / torch.where(total > 0, total, 1)
        return phi

    def _written(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h n c"],
        v: Float[Tensor, "b h n e_"],
        key_mask: Bool[Tensor, "b n"] | None,
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h r e"]]:
        """The inputs of the delta rule; padding writes nothing."""
        with without_autocast(q):
            v = at_least_single(v)
            beta = v[..., -1].sigmoid()
            beta = beta if key_mask is None else beta.masked_fill(~key_mask[:, None], 0)
            return delta_rule(self.features(q), self.features(k), v[..., :-1], beta)
