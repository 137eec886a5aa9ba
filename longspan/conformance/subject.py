"""The subject of a check: one mechanism in one pattern, on one device, with layers and inputs to test it with.

Properties that must hold exactly (leaks, padding, decoding...) are tested in float64 on a CPU. On a GPU, where fast
kernels have no float64, they are tested in the requested precision, with the tolerance stated here.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions import Attention, Mechanism, Pattern
from longspan.core.seeding import derive
from longspan.kernels.packing import real

DIM, HEADS = 16, 2  # small enough to be quick, with more than one channel per head
SHORT, LONG = 20, 133  # below and above the usual window, chunk and number of landmarks; LONG is a multiple of none
LONGEST = 160  # the fixed length of mechanisms that need one, unless a promise asks for another


@dataclass(frozen=True)
class Batch:
    """What a layer is given: tokens, the context of a cross pattern, and their masks (True = a real token)."""

    x: Float[Tensor, "b n d"]
    context: Float[Tensor, "b m d"] | None = None
    mask: Bool[Tensor, "b n"] | None = None
    context_mask: Bool[Tensor, "b m"] | None = None

    def row(self, index: int) -> "Batch":
        """One row of the batch, still a batch."""

        def one(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[index : index + 1]

        return Batch(self.x[index : index + 1], one(self.context), one(self.mask), one(self.context_mask))

    def real_row(self, index: int) -> "Batch":
        """One row without its padding and without masks."""
        one = self.row(index)
        x = one.x if one.mask is None else one.x[one.mask][None]
        context = one.context
        if context is not None and one.context_mask is not None:
            context = context[one.context_mask][None]
        return Batch(x, context)

    def with_padding_filled(self, noise: "Batch") -> "Batch":
        """The same real tokens, with the content of every padded position taken from `noise`."""
        x, context = self.x, self.context
        if self.mask is not None:
            x = torch.where(self.mask[..., None], x, noise.x)
        if context is not None and noise.context is not None and self.context_mask is not None:
            context = torch.where(self.context_mask[..., None], context, noise.context)
        return replace(self, x=x, context=context)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `change` applied to all tokens and masks."""
        context, mask, context_mask = (
            None if part is None else change(part) for part in (self.context, self.mask, self.context_mask)
        )
        return Batch(change(self.x), context, mask, context_mask)

    def requiring_grad(self) -> "Batch":
        context = None if self.context is None else self.context.detach().clone().requires_grad_()
        return replace(self, x=self.x.detach().clone().requires_grad_(), context=context)

    def leaves(self) -> dict[str, Tensor]:
        """The inputs that gradients flow into, by name."""
        return {"x": self.x} if self.context is None else {"x": self.x, "context": self.context}


@dataclass(frozen=True)
class Subject:
    """A mechanism in a pattern, with what a promise needs to test it."""

    mechanism: Mechanism
    pattern: Pattern
    device: str = "cpu"
    dtype: str = "float32"
    profile: str = "full"
    seed: int = 0

    @property
    def meta(self):
        return self.mechanism.meta

    @property
    def quick(self) -> bool:
        return self.profile == "quick"

    @property
    def on_cpu(self) -> bool:
        return torch.device(self.device).type == "cpu"

    @property
    def exact_dtype(self) -> torch.dtype:
        """The dtype of weights and inputs when a property that must hold exactly is tested."""
        return torch.float64 if self.on_cpu else torch.float32

    @property
    def dtype_asked(self) -> torch.dtype:
        """The dtype of weights and inputs where precision itself is tested; for bfloat16 the weights are in float32."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def exact_in_bfloat16(self) -> bool:
        return not self.on_cpu and self.dtype == "bfloat16"

    @property
    def tolerance(self) -> float:
        """How far two results that must be equal may differ, relative to the largest of them."""
        if self.on_cpu:
            return 1e-9  # float64, with room for the rounding of a transform
        return 5e-2 if self.exact_in_bfloat16 else 5e-4  # on a GPU the order of summation depends on the shape

    @property
    def huge(self) -> float:
        """A scale at which a stabiliser shared with the past shows, still within what the dtype resolves."""
        return 1e3 if self.on_cpu else 10.0

    def layer(
        self,
        *,
        dtype: torch.dtype | None = None,
        dim: int = DIM,
        heads: int = HEADS,
        longest: int | None = LONGEST,
        longest_context: int | None = None,
        training: bool = False,
        draw: int = 0,
        **shell: Any,
    ) -> Attention:
        """A layer of the mechanism; `draw` selects the random numbers of its initialisation.

        A context may be as long as x, unless `longest_context` says otherwise.
        """
        torch.manual_seed(derive(self.seed, "layer", draw))
        lengths = {"max_length": longest, "max_context": longest if longest_context is None else longest_context}
        layer = self.mechanism(dim, heads, self.pattern, **lengths, **shell)
        return layer.to(self.device, dtype or self.exact_dtype).train(training)

    def batch(
        self,
        rows: int,
        n: int,
        m: int | None = None,
        *,
        draw: object = 0,
        dim: int = DIM,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Batch:
        """Random tokens, and for a cross pattern a context (of n + 5 tokens unless `m` is given)."""
        x = self.noise(rows, n, dim, draw=(draw, "x"), dtype=dtype) * scale
        if not self.pattern.cross:
            return Batch(x)
        m = n + 5 if m is None else m
        return Batch(x, self.noise(rows, m, dim, draw=(draw, "context"), dtype=dtype) * scale)

    def padded_batch(
        self, n: int, *, draw: object = 0, dim: int = DIM, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Batch:
        """Three rows of different true lengths, padded at the right."""
        batch = self.batch(3, n, draw=draw, dim=dim, scale=scale, dtype=dtype)
        batch = replace(batch, mask=self.right(n, (n, max(1, n - 3), (n + 1) // 2)))
        if batch.context is None:
            return batch
        m = batch.context.shape[1]
        return replace(batch, context_mask=self.right(m, ((m + 1) // 2, m, max(1, m - 4))))

    def noise(self, *shape: int, draw: object = 0, dtype: torch.dtype | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(derive(self.seed, "noise", draw))
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype or self.exact_dtype)

    def right(self, width: int, lengths: Sequence[int]) -> Bool[Tensor, "b n"]:
        """A mask of right-padded rows."""
        rows: Int[Tensor, " b"] = torch.tensor(lengths, device=self.device)
        return real(rows, width)

    def run(self, layer: Attention, batch: Batch, *, bfloat16: bool | None = None) -> Float[Tensor, "b n d"]:
        with self.precision(bfloat16):
            return layer(batch.x, batch.context, mask=batch.mask, context_mask=batch.context_mask)

    def precision(self, bfloat16: bool | None = None) -> contextlib.AbstractContextManager:
        """bfloat16 means autocast over float32 weights, as in training."""
        if self.exact_in_bfloat16 if bfloat16 is None else bfloat16:
            return torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16)
        return contextlib.nullcontext()
