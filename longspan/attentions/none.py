"""No attention: the sublayer contributes nothing, and tokens pass through the residual connection alone.

    y_i = 0

The control of an ablation (CAB's "without attention" deletes the sublayer of every layer). It has no parameters, so a
network without attention is also smaller. Paper: arXiv:2210.07661. Departs from the paper in: a normalisation around
the sublayer belongs to the network and stays.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.attentions.base import ALL_PATTERNS, Attention, AttentionMeta
from longspan.attentions.states import DecodeState


@dataclass
class Count(DecodeState):
    """How many tokens each row has had so far."""

    tokens: Int[Tensor, " b"]


class NoAttention(Attention):
    meta = AttentionMeta(
        title="Without attention",
        paper="arXiv:2210.07661",
        family="none",
        cost="n",
        patterns=ALL_PATTERNS,
        rowwise=True,
        mixes=False,
        remark="An ablation and no mechanism: tokens never meet.",
    )

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        return _erased(x)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *_: Any) -> Count:
        return Count(torch.full((x.shape[0],), x.shape[1], device=x.device) if mask is None else mask.sum(dim=1))

    def step(self, x_t: Float[Tensor, "b d"], state: Count) -> tuple[Float[Tensor, "b d"], Count]:
        self._needs_decoding()
        return _erased(x_t), Count(state.tokens + 1)


def _erased(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Zeros like x that can be differentiated; the gradient is zero too, even where x is not finite."""
    zeros = _Erased.apply(x)
    assert isinstance(zeros, Tensor)
    return zeros


class _Erased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0])
