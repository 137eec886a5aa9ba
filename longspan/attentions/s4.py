"""S4: a state space that remembers the past as HiPPO does, a diagonal plus a matrix of rank one in place of attention.

    x'(t) = (Lambda - P P*) x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      Lambda = -exp(log_decay) + i frequency

sampled by the bilinear rule at steps Delta of each channel's own. The part of rank one is then a feedback: a diagonal
state space, driven by u and by a number w that it reads from itself. While decoding this takes O(N) operations a token:

    x_t = a x_{t-1} + b u_t - p w_t      w_t = Re P* (x_t + x_{t-1})      y_t = 2 Re C x_t + D u_t

    g = 2 Delta / (2 - Delta Lambda)     a = (2 + Delta Lambda) / (2 - Delta Lambda)     b = g B     p = g P

While training, the loop is closed (`kernels/state_space/systems.py`): y = K * u + D u.

Then GELU, a linear map to twice the width and a gate (GLU). Non-causal self attention has a second C for a convolution
from the right, which begins at the next token, so that the present is seen once; `bidirectional=False` leaves it out.
Only half of the `state` numbers are kept, the rest being their conjugates. Lambda, P and B start as those of HiPPO-LegS
and are shared by all channels (`tied`). It mixes along the sequence, channel by channel: `heads` and `inner` have no
effect. Padding is not time: a padded token neither enters the state nor lets it fade. Lambda, P, B and Delta want a
learning rate of at most 1e-3 and no weight decay; they say so in their attribute `optim`. Paper: arXiv:2111.00396.

Departs from the paper in: C itself is the parameter, for every length the same; the paper stores C (I - A^L), which
belongs to one length, and evaluates on the unit circle.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.kernels.precision import at_least_single
from longspan.kernels.state_space import (
    DiagonalPlusRankOne,
    check_sizes,
    final_state,
    gently_trained,
    hippo,
    random_steps,
    state_space,
    state_space_step,
)


@dataclass
class Memory(DecodeState):
    """The state x of every channel, as pairs of real and imaginary part."""

    x: Float[Tensor, "b d n 2"]


class S4(Attention):
    meta = AttentionMeta(
        title="S4",
        paper="arXiv:2111.00396",
        family="state space",
        cost="n log n",
        patterns=SELF_PATTERNS,
        positions=True,
        remark="Brings its own output map (GELU, linear, GLU); heads have no effect.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        state: int = 64,
        channels: int = 1,
        tied: bool = True,
        bidirectional: bool = True,
        step_min: float = 1e-3,
        step_max: float = 1e-1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        check_sizes(state, channels, step_min, step_max)
        self.directions = 2 if bidirectional and self.pattern is Pattern.NONCAUSAL_SELF else 1
        owners, (frequency, p) = 1 if tied else dim, hippo(state)
        p = torch.stack([p, torch.zeros_like(p)], dim=-1).expand(owners, -1, -1)
        self.log_decay = gently_trained(torch.full((owners, state // 2), math.log(0.5)))
        self.frequency = gently_trained(frequency.expand(owners, -1))
        self.p = gently_trained(p)
        self.b = gently_trained(math.sqrt(2) * p)
        self.log_step = random_steps(dim, step_min, step_max)
        c = torch.randn(self.directions * channels, dim, state // 2, dtype=torch.complex64)
        self.c = nn.Parameter(torch.view_as_real(c))  # the second half of the channels runs backwards, if there is one
        self.skip = nn.Parameter(torch.randn(channels, dim))
        self.out = nn.Linear(channels * dim, 2 * dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        return self._map_out(state_space(x, self.system(), self.skip, mask, gelu=True))

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Memory]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        return y, Memory(final_state(x, self.system(), mask))

    def step(self, x_t: Float[Tensor, "b d"], state: Memory) -> tuple[Float[Tensor, "b d"], Memory]:
        self._needs_decoding()
        y, x = state_space_step(x_t, self.system(), self.skip, state.x, gelu=True)
        return self._map_out(y), Memory(x)

    def system(self) -> DiagonalPlusRankOne:
        """The recurrence by the bilinear rule, in double precision."""
        step = self.log_step.double().exp()[:, None]
        drift = step * torch.complex(-self.log_decay.double().exp(), self.frequency.double())
        b, p, c = (torch.view_as_complex(pairs.double().contiguous()) for pairs in (self.b, self.p, self.c))
        log_a, gain = ((2 + drift) / (2 - drift)).log(), 2 * step / (2 - drift)
        precision = at_least_single(self.c[:0]).dtype
        return DiagonalPlusRankOne(log_a, gain * b, gain * p, p.conj().expand_as(drift), c, precision)

    def _map_out(self, y: Float[Tensor, "*n cd"]) -> Float[Tensor, "*n d"]:
        return F.glu(self.out(y.to(self.out.weight.dtype)), dim=-1)
