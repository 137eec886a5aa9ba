"""S4D: a diagonal state space in place of attention; each channel is a long convolution with a sum of damped waves.

    x'(t) = A x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      A = -exp(log_decay) + i frequency, one per state

sampled at steps Delta of each channel's own, which makes a recurrence while decoding and a convolution while training:

    s_t = A~ s_{t-1} + u_t      y_t = 2 Re sum_n C_n B~_n s_tn + D u_t      K_l = 2 Re sum_n C_n B~_n A~_n^l
    rule="zoh" (zero-order hold)      A~ = exp(Delta A)                     B~ = (A~ - 1) / A
    rule="bilinear"                   A~ = (2 + Delta A) / (2 - Delta A)    B~ = 2 Delta / (2 - Delta A)

B is folded into C. Then GELU, a linear map to twice the width and a gate (GLU). Non-causal self attention has a second
C for a convolution from the right, which begins at the next token, so that the present is seen once;
`bidirectional=False` leaves it out, and what is called non-causal then sees the past alone. Only half of the `state`
numbers are kept, the rest being their conjugates. The initial A: `lin` -1/2 + i pi n, `inv` -1/2 + i (N/pi)
(N/(2n+1) - 1), `legs` the eigenvalues of HiPPO-LegS without its low-rank part, `real` -(n+1).

It mixes along the sequence, channel by channel: `heads` and `inner` have no effect, and there are no queries, keys and
values. Padding is not time: a padded token neither enters the state nor lets it fade. The parameters of A and Delta
want a learning rate of at most 1e-3 and no weight decay; they say so in their attribute `optim`. CAB's layer is
`s4d(init="inv", output="linear", tied=True, bidirectional=False)` with as many `channels` as heads (8 in its language
models): the published numbers of parameters fit one direction only, non-causal tasks included. Paper:
arXiv:2206.11893. Departs from the paper in: nothing.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single
from longspan.kernels.state_space import (
    Diagonal,
    check_sizes,
    final_state,
    gently_trained,
    hippo,
    random_steps,
    state_space,
    state_space_step,
)

Start = Literal["lin", "inv", "legs", "real"]


@dataclass
class Memory(DecodeState):
    """The state s of every channel, as pairs of real and imaginary part."""

    s: Float[Tensor, "b d n 2"]


class S4D(Attention):
    meta = AttentionMeta(
        title="S4D",
        paper="arXiv:2206.11893",
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
        init: Start = "lin",
        rule: Literal["zoh", "bilinear"] = "zoh",
        tied: bool = False,
        bidirectional: bool = True,
        activation: Literal["gelu", "none"] = "gelu",
        output: Literal["glu", "linear", "none"] = "glu",
        step_min: float = 1e-3,
        step_max: float = 1e-1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        check_sizes(state, channels, step_min, step_max)
        if output == "none" and channels != 1:
            raise UsageError(f"Without an output map there is one channel per feature, got channels={channels}.")
        self.rule, self.activation, self.output = rule, activation, output
        a = initial_a(init, state).expand(1 if tied else dim, -1)
        self.directions = 2 if bidirectional and self.pattern is Pattern.NONCAUSAL_SELF else 1
        self.log_decay = gently_trained((-a.real).log())
        self.frequency = gently_trained(a.imag)
        self.log_step = random_steps(dim, step_min, step_max)
        c = torch.randn(self.directions * channels, dim, state // 2, dtype=torch.complex64)
        self.c = nn.Parameter(torch.view_as_real(c))  # the second half of the channels runs backwards, if there is one
        self.skip = nn.Parameter(torch.randn(channels, dim))
        if output != "none":
            self.out = nn.Linear(channels * dim, 2 * dim if output == "glu" else dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        y = state_space(x, self.system(), self.skip, mask, gelu=self.activation == "gelu")
        return self._map_out(y, x.dtype)

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
        y, s = state_space_step(x_t, self.system(), self.skip, state.s, gelu=self.activation == "gelu")
        return self._map_out(y, x_t.dtype), Memory(s)

    def system(self) -> Diagonal:
        """A~, as its logarithm, and C B~."""
        log_decay, frequency = at_least_single(self.log_decay), at_least_single(self.frequency)
        log_step, c = at_least_single(self.log_step), at_least_single(self.c)
        a = torch.complex(-log_decay.exp(), frequency)
        step = log_step.exp()[:, None]
        if self.rule == "zoh":
            log_a, b = step * a, torch.expm1(step * a) / a
        else:
            log_a, b = ((2 + step * a) / (2 - step * a)).log(), 2 * step / (2 - step * a)
        return Diagonal(log_a, torch.view_as_complex(c.contiguous()) * b)

    def _map_out(self, y: Float[Tensor, "*n c_times_d"], dtype: torch.dtype) -> Float[Tensor, "*n d"]:
        if self.output == "none":
            return y.to(dtype)
        y = self.out(y.to(self.out.weight.dtype))
        return F.glu(y, dim=-1) if self.output == "glu" else y


def initial_a(init: Start, state: int) -> Complex[Tensor, " n"]:
    """One of each pair of conjugates, with a negative real part."""
    n = torch.arange(state // 2)
    half = torch.full((state // 2,), -0.5)
    if init == "lin":
        return torch.complex(half, math.pi * n)
    if init == "inv":
        return torch.complex(half, state / math.pi * (state / (2 * n + 1) - 1))
    if init == "real":
        return torch.complex(-(n + 1.0), torch.zeros(state // 2))
    return torch.complex(half, hippo(state)[0])
