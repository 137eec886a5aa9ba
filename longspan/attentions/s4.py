"""S4: a state space model with HiPPO memory in place of attention, its matrix a diagonal plus one of rank one.

    x'(t) = (Lambda - P P*) x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      Lambda = -exp(log_decay) + i frequency

discretised by the bilinear rule with a step Delta for each channel. The rank-one part is then a feedback: a diagonal
state space driven by u and by a number w that it reads from its own state. Decoding takes O(N) operations per token:

    x_t = a x_{t-1} + b u_t - p w_t      w_t = Re P* (x_t + x_{t-1})      y_t = 2 Re C x_t + D u_t

    g = 2 Delta / (2 - Delta Lambda)     a = (2 + Delta Lambda) / (2 - Delta Lambda)     b = g B     p = g P

In training, the loop is closed (`kernels/state_space/systems.py`): y = K * u + D u. Then GELU, a linear map to twice
the width and a gate (GLU). Directions, padding and learning rates are those of `attentions/state_space.py`. Lambda, P
and B start as those of HiPPO-LegS and are shared by all channels (`tied`). Paper: arXiv:2111.00396.

Departs from the paper in: C itself is the parameter, the same for every length; the paper stores C (I - A^L), which
holds for one length, and evaluates on the unit circle.
"""

import math
from typing import Any

import torch

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, Pattern
from longspan.attentions.state_space import StateSpace, gently_trained
from longspan.kernels.precision import at_least_single
from longspan.kernels.state_space.systems import DiagonalPlusRankOne, hippo


class S4(StateSpace):
    meta = AttentionMeta(
        title="S4",
        paper="arXiv:2111.00396",
        family="state space",
        cost="n log n",
        patterns=SELF_PATTERNS,
        positions=True,
        remark="Brings its own output map (GELU, linear, GLU); heads have no effect.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, state: int = 64, tied: bool = True, **shell: Any):
        owners, (frequency, p) = 1 if tied else dim, hippo(state)
        lambda_ = torch.complex(torch.full_like(frequency, -0.5), frequency)
        super().__init__(dim, heads, pattern, lambda_.expand(owners, -1), **shell)
        p = torch.stack([p, torch.zeros_like(p)], dim=-1).expand(owners, -1, -1)
        self.p, self.b = gently_trained(p), gently_trained(math.sqrt(2) * p)

    def system(self) -> DiagonalPlusRankOne:
        """The recurrence from the bilinear rule, in double precision."""
        step = self.log_step.double().exp()[:, None]
        drift = step * torch.complex(-self.log_decay.double().exp(), self.frequency.double())
        b, p, c = (torch.view_as_complex(pairs.double().contiguous()) for pairs in (self.b, self.p, self.c))
        log_a, gain = ((2 + drift) / (2 - drift)).log(), 2 * step / (2 - drift)
        precision = at_least_single(self.c[:0]).dtype
        return DiagonalPlusRankOne(log_a, gain * b, gain * p, p.conj().expand_as(drift), c, precision)
