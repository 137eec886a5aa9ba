"""S4D: a diagonal state space in place of attention; each channel is a long convolution with damped oscillations.

    x'(t) = A x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      A = -exp(log_decay) + i frequency, one per state

discretised with a step Delta for each channel, which gives a recurrence for decoding and a convolution for training:

    s_t = A~ s_{t-1} + u_t      y_t = 2 Re sum_n C_n B~_n s_tn + D u_t      K_l = 2 Re sum_n C_n B~_n A~_n^l
    rule="zoh" (zero-order hold)      A~ = exp(Delta A)                     B~ = (A~ - 1) / A
    rule="bilinear"                   A~ = (2 + Delta A) / (2 - Delta A)    B~ = 2 Delta / (2 - Delta A)

B is folded into C. Then GELU, a linear map to twice the width and a gate (GLU). Directions, padding and learning rates
are those of `attentions/state_space.py`. The initial A: `lin` -1/2 + i pi n, `inv` -1/2 + i (N/pi) (N/(2n+1) - 1),
`legs` the eigenvalues of HiPPO-LegS without its low-rank part, `real` -(n+1).

CAB's layer is `s4d(init="inv", output="linear", tied=True, bidirectional=False)` with as many `channels` as heads (8 in
its language models): the published parameter counts fit only one direction, even in non-causal tasks. Paper:
arXiv:2206.11893. Departs from the paper in: nothing.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Complex
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, Pattern
from longspan.attentions.state_space import StateSpace
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single
from longspan.kernels.state_space.systems import Diagonal, conjugate_pairs, hippo

Start = Literal["lin", "inv", "legs", "real"]


class S4D(StateSpace):
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
        activation: Literal["gelu", "none"] = "gelu",
        output: Literal["glu", "linear", "none"] = "glu",
        **shell: Any,
    ):
        if output == "none" and channels != 1:
            raise UsageError(f"Without an output map there is one channel per feature, got channels={channels}.")
        a = initial_a(init, state).expand(1 if tied else dim, -1)
        self.rule, self.activation, self.output = rule, activation, output
        super().__init__(dim, heads, pattern, a, channels=channels, **shell)

    def system(self) -> Diagonal:
        """A~, as its logarithm, and C B~."""
        letters = (self.log_decay, self.frequency, self.log_step, self.c)
        log_decay, frequency, log_step, c = map(at_least_single, letters)
        a, step = torch.complex(-log_decay.exp(), frequency), log_step.exp()[:, None]
        if self.rule == "zoh":
            log_a, b = step * a, torch.expm1(step * a) / a
        else:
            log_a, b = ((2 + step * a) / (2 - step * a)).log(), 2 * step / (2 - step * a)
        return Diagonal(log_a, torch.view_as_complex(c.contiguous()) * b)


def initial_a(init: Start, state: int) -> Complex[Tensor, " n"]:
    """One of each pair of conjugates, with a negative real part."""
    n = torch.arange(conjugate_pairs(state))
    half = torch.full((state // 2,), -0.5)
    if init == "lin":
        return torch.complex(half, math.pi * n)
    if init == "inv":
        return torch.complex(half, state / math.pi * (state / (2 * n + 1) - 1))
    if init == "real":
        return torch.complex(-(n + 1.0), torch.zeros(state // 2))
    return torch.complex(half, hippo(state)[0])
