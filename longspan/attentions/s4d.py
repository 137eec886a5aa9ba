"""S4D: a diagonal state space in place of attention; each channel is a long convolution with a sum of damped waves.

    x'(t) = A x(t) + B u(t)      y(t) = 2 Re C x(t) + D u(t)      A = -exp(log_decay) + i frequency, one per state

sampled at steps Delta of each channel's own, which makes a recurrence while decoding and a convolution while training:

    s_t = A~ s_{t-1} + u_t      y_t = 2 Re sum_n C_n B~_n s_tn + D u_t      K_l = 2 Re sum_n C_n B~_n A~_n^l
    rule="zoh" (zero-order hold)      A~ = exp(Delta A)                     B~ = (A~ - 1) / A
    rule="bilinear"                   A~ = (2 + Delta A) / (2 - Delta A)    B~ = 2 Delta / (2 - Delta A)

B is folded into C. On a GPU the recurrence takes a chunk of tokens at a time (`filter_chunks`), and there is no kernel.
Then GELU, a linear map to twice the width and a gate (GLU). Non-causal self attention has a second
C for a convolution from the right, which begins at the next token, so that the present is seen once;
`bidirectional=False` leaves it out, and what is called non-causal then sees the past alone. Only half of the `state`
numbers are kept, the rest being their conjugates. The initial A: `lin` -1/2 + i pi n, `inv` -1/2 + i (N/pi)
(N/(2n+1) - 1), `legs` the eigenvalues of HiPPO-LegS without its low-rank part, `real` -(n+1).

It mixes along the sequence, channel by channel: `heads` and `inner` have no effect, and there are no queries, keys and
values. Padding is not time: a hidden token neither enters the state nor lets it fade. The parameters of A and Delta
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
from einops import einsum, rearrange
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, DecodeState, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.packing import left_align
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.state_space import (
    chunk_type,
    chunks,
    filter_chunks,
    filter_tokens,
    gently_trained,
    impulse_response,
    last_state,
)
from longspan.kernels.state_space.chunks import Chunk, as_pairs, as_reading

Start = Literal["lin", "inv", "legs", "real"]


@dataclass
class Waves(DecodeState):
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
        if state < 2 or state % 2:
            raise UsageError(f"The state consists of conjugate pairs, got state={state}; choose an even number.")
        if not 0 < step_min <= step_max:
            raise UsageError(f"Steps need 0 < step_min <= step_max, got step_min={step_min} and step_max={step_max}.")
        if channels < 1 or (output == "none" and channels != 1):
            raise UsageError(f"Without an output map there is one channel per feature, got channels={channels}.")
        self.rule, self.activation, self.output = rule, activation, output
        a = initial_a(init, state).expand(1 if tied else dim, -1)
        self.directions = 2 if bidirectional and self.pattern is Pattern.NONCAUSAL_SELF else 1
        spread = math.log(step_max) - math.log(step_min)
        self.log_decay = gently_trained((-a.real).log())
        self.frequency = gently_trained(a.imag)
        self.log_step = gently_trained(torch.rand(dim) * spread + math.log(step_min))
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
        gelu, dtype = self.activation == "gelu", chunk_type(x, 2 * self.frequency.shape[1])
        with without_autocast(x):
            if dtype is not None:
                y = filter_chunks(x, self.chunk(chunks.LENGTH, dtype), mask, gelu=gelu)
            else:
                kernel = self.kernel(x.shape[1])
                forth, back = (kernel, None) if self.directions == 1 else kernel.chunk(2)
                y = filter_tokens(x, forth, back, self.skip, mask)
                y = F.gelu(y) if gelu else y
        return self._map_out(y, x.dtype)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Waves]:
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        with without_autocast(x):
            log_a, _ = self.sampled()
            return y, Waves(torch.view_as_real(last_state(log_a, *left_align(at_least_single(x), mask))))

    def step(self, x_t: Float[Tensor, "b d"], state: Waves) -> tuple[Float[Tensor, "b d"], Waves]:
        self._needs_decoding()
        with without_autocast(x_t):
            u = at_least_single(x_t)
            log_a, c = self.sampled()
            s = log_a.exp() * torch.view_as_complex(state.s) + u[..., None]
            y = 2 * einsum(c, s, "c d n, b d n -> b c d").real + self.skip * u[:, None]
            y = F.gelu(y) if self.activation == "gelu" else y
        return self._map_out(rearrange(y, "b c d -> b (c d)"), x_t.dtype), Waves(torch.view_as_real(s))

    def sampled(self) -> tuple[Complex[Tensor, "d n"], Complex[Tensor, "c d n"]]:
        """The logarithm of A~, and C B~."""
        log_decay, frequency = at_least_single(self.log_decay), at_least_single(self.frequency)
        log_step, c = at_least_single(self.log_step), at_least_single(self.c)
        a = torch.complex(-log_decay.exp(), frequency)
        step = log_step.exp()[:, None]
        if self.rule == "zoh":
            log_a, b = step * a, torch.expm1(step * a) / a
        else:
            log_a, b = ((2 + step * a) / (2 - step * a)).log(), 2 * step / (2 - step * a)
        return log_a, torch.view_as_complex(c.contiguous()) * b

    def kernel(self, length: int) -> Float[Tensor, "c d n"]:
        """K_l = 2 Re sum_n C_n B~_n A~_n^l for l < length."""
        return impulse_response(*self.sampled(), length)

    def chunk(self, length: int, dtype: torch.dtype) -> Chunk:
        """The recurrence over `length` tokens at once."""
        (log_a, c), forth = self.sampled(), self.skip.shape[0]
        powers = (log_a[:, None] * torch.arange(length, device=log_a.device)[:, None]).exp()  # [d t n]
        c = rearrange(2 * c, "c d n -> d c n")
        later = torch.cat([c[:, :forth] * log_a.exp()[:, None], c[:, forth:]], dim=1)  # read from the next token on
        reads = as_reading(later[:, :, None] * powers[:, None])
        return chunks.lift(as_pairs(powers), as_reading(c), reads, self.skip, (length * log_a).exp(), dtype)

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
    k = (2 * torch.arange(state, dtype=torch.float64) + 1).sqrt()
    skew = (k[:, None] * k).triu(1) / 2  # the normal part of HiPPO-LegS is -1/2 plus a skew-symmetric matrix
    frequencies = torch.linalg.eigvalsh(1j * (skew - skew.mT)).float()
    return torch.complex(half, frequencies[state // 2 :])
