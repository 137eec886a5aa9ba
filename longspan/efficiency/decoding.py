"""The decoding workload: one more token after a context, from the state that `prefill` returned.

    workload = DecodeWorkload(attentions.get("linear"), Pattern.CAUSAL_SELF, setup, length=16384, device="cuda")
    workload.work().state_bytes

A call is `step`, projections included, for one token of every row, always from the state after the whole context, so
that every reading is at the same length. In causal cross attention the length is that of the context.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Attention, DecodeState, Mechanism, Pattern
from longspan.core.seeding import seed_everything
from longspan.efficiency.setup import Setup
from longspan.efficiency.workload import TimedCalls, finer, precision, sets_needed


class DecodeWorkload:
    """A causal layer after a context, with enough copies of its state that no cache holds them all."""

    def __init__(self, mechanism: Mechanism, pattern: Pattern, setup: Setup, length: int, device: str):
        seed_everything(setup.seed)
        self.setup, self.pattern, self.length, self.device = setup, pattern, length, device
        longest = length + 1
        self.layer = mechanism(setup.width, setup.heads, pattern, max_length=longest, max_context=longest)
        self.layer = self.layer.to(device).eval()
        tokens, token = self._noise(length), self._noise(1)[:, 0]
        state = self._after(self.layer, tokens, setup.dtype)
        self.row = tokens[:1].clone(), token[:1]  # for `sample`; the whole context is no longer needed
        rows = torch.arange(setup.batch, device=device)
        copies = sets_needed(state.nbytes, device)
        self.sets = [(token, state), *((self._noise(1)[:, 0], state.select(rows)) for _ in range(copies - 1))]

    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.layer.parameters())

    def work(self) -> TimedCalls:
        token, state = self.sets[0]
        tensors = [value for value in vars(state).values() if torch.is_tensor(value)]
        held = [token, *tensors, *self.layer.parameters(), *self.layer.buffers()]
        calls = [self._step(*one) for one in self.sets]
        return TimedCalls(calls, held, calls[0], state_bytes=state.nbytes)

    def sample(self, dtype: torch.dtype | None = None) -> Float[Tensor, "b d"]:
        """The output for the token after the first row: as it is timed, or with weights and inputs in `dtype`."""
        layer, (tokens, token) = self.layer, self.row
        if dtype is not None:
            layer, tokens, token = finer(layer, dtype), tokens.to(dtype), token.to(dtype)
        kind = self.setup.dtype if dtype is None else "float32"
        state = self._after(layer, tokens, kind)
        with torch.no_grad(), precision(self.device, kind):
            return layer.step(token, state)[0]

    def _after(self, layer: Attention, tokens: Float[Tensor, "b n d"], kind: str) -> DecodeState:
        with torch.no_grad(), precision(self.device, kind):
            if self.pattern.cross:
                return layer.prefill(tokens[:, :1], tokens)[1]
            return layer.prefill(tokens)[1]

    def _noise(self, length: int) -> Float[Tensor, "b n d"]:
        shape = (self.setup.batch, length, self.setup.width)
        return torch.randn(shape, device=self.device, dtype=getattr(torch, self.setup.dtype))

    def _step(self, token: Float[Tensor, "b d"], state: Any) -> Callable[[], None]:
        @torch.no_grad()
        def call() -> None:
            with precision(self.device, self.setup.dtype):
                self.layer.step(token, state)

        return call
