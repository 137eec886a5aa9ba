"""What S4 and S4D share: GLU(W gelu(K * x + D x)), where K is the impulse response of a linear system.

The system is discretised with a step Delta for each channel, has a diagonal part A = -exp(log_decay) + i frequency, and
is run by `kernels/state_space`: as a convolution in training, as a recurrence in decoding. Non-causal self attention
has a second C for a convolution from the right, which begins at the next token, so that the current token is seen once;
`bidirectional=False` leaves it out, and the non-causal form then sees only the past. Of the `state` numbers only half
are kept, since the rest are their conjugates.

It mixes along the sequence, channel by channel: `heads` and `inner` have no effect. Padding takes no time step: a
padded token neither enters the state nor decays it. The parameters of the dynamics should have no weight decay and a
learning rate of at most 1e-3, unless a recipe sets a rate for them (`ssm_learning_rate`, and `dt_learning_rate` for the
steps); their attribute `optim` says so.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.precision import as_operand
from longspan.kernels.state_space import System, final_state, state_space, state_space_step


@dataclass
class Memory(DecodeState):
    """The state of every channel, as pairs of real and imaginary part."""

    s: Float[Tensor, "b d n 2"]


class StateSpace(Attention):
    activation: Literal["gelu", "none"] = "gelu"
    output: Literal["glu", "linear", "none"] = "glu"
    mixer_dropout: float = 0.0  # between the activation and the output projection
    mixer_dropout_tied: bool = False

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        a: Complex[Tensor, "owners n"],
        *,
        channels: int = 1,
        bidirectional: bool = True,
        step_min: float = 1e-3,
        step_max: float = 1e-1,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if not 0 < step_min <= step_max:
            raise UsageError(f"Steps need 0 < step_min <= step_max, got step_min={step_min} and step_max={step_max}.")
        if channels < 1:
            raise UsageError(f"Every feature needs at least one channel, got channels={channels}.")
        low, high = math.log(step_min), math.log(step_max)
        self.directions = 2 if bidirectional and self.pattern is Pattern.NONCAUSAL_SELF else 1
        self.log_decay = gently_trained((-a.real).log())
        self.frequency = gently_trained(a.imag)
        self.log_step = gently_trained(torch.rand(dim) * (high - low) + low, kind="dt")
        c = torch.randn(self.directions * channels, dim, a.shape[1], dtype=torch.complex64)
        self.c = nn.Parameter(torch.view_as_real(c))  # with two directions, the second half runs backwards
        self.skip = nn.Parameter(torch.randn(channels, dim))
        if self.output != "none":
            self.out = nn.Linear(channels * dim, 2 * dim if self.output == "glu" else dim, bias=bias)

    @abstractmethod
    def system(self) -> System:
        """The sampled system."""

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
        return self._map_out(self._dropped(y), x.dtype)

    def drop_inside(self, rate: float, *, tied: bool = False) -> None:
        self.mixer_dropout, self.mixer_dropout_tied = rate, tied

    def _dropped(self, y: Float[Tensor, "b n c_times_d"]) -> Float[Tensor, "b n c_times_d"]:
        if not self.training or not self.mixer_dropout:
            return y
        if self.mixer_dropout_tied:
            return y * F.dropout(y.new_ones(y.shape[0], 1, y.shape[2]), self.mixer_dropout)
        return F.dropout(y, self.mixer_dropout)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *_: Any) -> Memory:
        return Memory(final_state(x, self.system(), mask))

    def step(self, x_t: Float[Tensor, "b d"], state: Memory) -> tuple[Float[Tensor, "b d"], Memory]:
        self._needs_decoding()
        y, s = state_space_step(x_t, self.system(), self.skip, state.s, gelu=self.activation == "gelu")
        return self._map_out(y, x_t.dtype), Memory(s)

    def _map_out(self, y: Float[Tensor, "*n c_times_d"], dtype: torch.dtype) -> Float[Tensor, "*n d"]:
        if self.output == "none":
            return y.to(dtype)
        y = self.out(as_operand(y, self.out.weight))
        return F.glu(y, dim=-1) if self.output == "glu" else y


def gently_trained(value: Tensor, kind: Literal["ssm", "dt"] = "ssm") -> nn.Parameter:
    """A parameter of the dynamics, whose attribute `optim` says how the papers train it."""
    parameter = nn.Parameter(value.clone())
    wish = {"weight_decay": 0.0, "max_learning_rate": 1e-3, "kind": kind}
    parameter.optim = wish  # pyright: ignore[reportAttributeAccessIssue]
    return parameter
