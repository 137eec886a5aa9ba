"""The work that is timed: a mechanism at one length, with so many inputs that no cache holds them all.

    workload = ModuleWorkload(attentions.get("linear"), Pattern.CAUSAL_SELF, setup, length=4096, device="cuda")
    work = workload.work("train")
    for call in work.calls:      # the same work on other inputs
        call()

A core is `attend` on queries, keys and values [b h n c]; for a mechanism without that method, and for a layer, the
work is `forward` on tokens [b n d]; a block adds norms, residual connections and an MLP. In bfloat16, inputs are
bfloat16 and weights float32 under autocast, as in training. A training call is forward and backward to the inputs and
to every parameter that takes part; it keeps no gradient.
"""

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.attentions import Attention, HeadwiseAttention, Mechanism, Pattern
from longspan.core.seeding import seed_everything
from longspan.efficiency.setup import Mode, Setup
from longspan.kernels.precision import compile_backward_without_autocast

CPU_CACHE_BYTES = 32 * 2**20  # torch does not report it; larger than most
MOST_SETS = 16

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(frozen=True)
class TimedCalls:
    """Calls that do the same on different inputs, and the tensors that exist before and after them."""

    calls: list[Callable[[], Any]]
    held: list[Tensor]
    counted: Callable[[], Any]  # a call, in a form that an operation counter can follow
    forward: Callable[[], Tensor] | None = None  # the forward pass of a call, whose output keeps what backward needs
    state_bytes: int | None = None  # in decode mode


class ModuleWorkload:
    """A mechanism in its module at one length, with its inputs; made once for all modes except decode."""

    def __init__(self, mechanism: Mechanism, pattern: Pattern, setup: Setup, length: int, device: str):
        seed_everything(setup.seed)
        self.setup, self.pattern, self.length, self.device = setup, pattern, length, device
        self.module = module_of(mechanism, pattern, setup, length).to(device)
        one = self._inputs()
        copies = sets_needed(sum(x.nbytes for x in one), device)
        self.sets = [one, *(self._inputs() for _ in range(copies - 1))]
        self.directions: list[Tensor] = []  # gradients of the outputs, made when first needed

    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def apply(self, *inputs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The forward pass; with queries, keys and values as inputs, that of the core alone."""
        return apply_to(self.module, *inputs)

    def work(self, mode: Mode, *, compiled: bool = False) -> TimedCalls:
        self.module.train(mode == "train")
        apply = self.apply
        if compiled:
            torch.compiler.reset()  # else earlier shapes count against the limit of this one
            compile_backward_without_autocast()
            apply = torch.compile(self.apply, dynamic=False)
        held = [*self.sets[0], *self._weights()]
        if mode == "forward":
            calls = [self._forward(apply, inputs) for inputs in self.sets]
            return TimedCalls(calls, held, self._forward(self.apply, self.sets[0]), calls[0])
        while len(self.directions) < len(self.sets):
            with torch.no_grad(), precision(self.device, self.setup.dtype):
                y = self.apply(*self.sets[len(self.directions)])
            self.directions.append(torch.randn_like(y))  # in the memory layout of the output
        leaves = [[x.detach().requires_grad_() for x in inputs] for inputs in self.sets]

        def forward() -> Tensor:
            with precision(self.device, self.setup.dtype):
                return apply(*leaves[0])

        def apply_to_views(*inputs: Tensor) -> Tensor:
            return self.apply(
                *(x.view_as(x) for x in inputs)
            )  # a counter cannot follow a module's input that is a leaf

        calls = [self._train(apply, own, dy) for own, dy in zip(leaves, self.directions, strict=True)]
        counted = self._train(apply_to_views, leaves[0], self.directions[0])
        return TimedCalls(calls, [*held, self.directions[0]], counted, forward)

    def sample(self, dtype: torch.dtype | None = None) -> Float[Tensor, "..."]:
        """The output for the first row: as it is timed, or with weights and inputs in `dtype`."""
        module, inputs = self.module, [x[:1] for x in self.sets[0]]
        if dtype is not None:
            module, inputs = finer(module, dtype), [x.to(dtype) for x in inputs]
        module.eval()
        with torch.no_grad(), precision(self.device, self.setup.dtype if dtype is None else "float32"):
            return apply_to(module, *inputs)

    @property
    def _is_attend(self) -> bool:
        return self.setup.module == "core" and core_of(type(self.module)) == "attend"

    def _weights(self) -> list[Tensor]:
        """Parameters and buffers, without the projections where the call does not use them."""
        around = ("query.", "key.", "value.", "out.") if self._is_attend else ()
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        return [tensor for name, tensor in named if not name.startswith(around)]

    def _inputs(self) -> list[Tensor]:
        setup, dtype = self.setup, getattr(torch, self.setup.dtype)
        if self._is_attend:
            shape, count = (setup.batch, setup.heads, self.length, setup.dim), 3
        else:
            shape, count = (setup.batch, self.length, setup.width), 2 if self.pattern.cross else 1
        return [torch.randn(shape, device=self.device, dtype=dtype) for _ in range(count)]

    def _forward(self, apply: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], Tensor]:
        @torch.no_grad()
        def call() -> Tensor:
            with precision(self.device, self.setup.dtype):
                return apply(*inputs)

        return call

    def _train(self, apply: Callable[..., Tensor], leaves: list[Tensor], dy: Tensor) -> Callable[[], None]:
        wanted = [*leaves, *(p for p in self.module.parameters() if p.requires_grad)]

        def call() -> None:
            with precision(self.device, self.setup.dtype):
                y = apply(*leaves)
            torch.autograd.grad(y, wanted, dy, allow_unused=True)

        return call


class TimedBlock(nn.Module):
    """A pre-norm block: the mechanism, then an MLP four times as wide, each on a residual connection."""

    def __init__(self, attention: Attention):
        super().__init__()
        dim = attention.dim
        self.attention_norm, self.attention = nn.LayerNorm(dim), attention
        self.mlp = None
        if not attention.meta.owns_block:
            self.mlp_norm = nn.LayerNorm(dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(
        self, x: Float[Tensor, "b n d"], context: Float[Tensor, "b m d"] | None = None
    ) -> Float[Tensor, "b n d"]:
        x = x + self.attention(self.attention_norm(x), context)
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))


def module_of(mechanism: Mechanism, pattern: Pattern, setup: Setup, longest: int) -> nn.Module:
    attention = mechanism(setup.width, setup.heads, pattern, max_length=longest, max_context=longest)
    return TimedBlock(attention) if setup.module == "block" else attention


def core_of(cls: type) -> Literal["attend", "layer"]:
    """What a core is: `attend` where the mechanism works head by head, else the whole layer."""
    return "attend" if issubclass(cls, HeadwiseAttention) else "layer"


def apply_to(module: nn.Module, *inputs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Three inputs are queries, keys and values; one or two are tokens and their context."""
    if len(inputs) == 3 and isinstance(module, HeadwiseAttention):
        return module.attend(*inputs)
    return module(*inputs)


def finer(module: AnyModule, dtype: torch.dtype) -> AnyModule:
    """A copy of the module whose weights have this precision."""
    return copy.deepcopy(module).to(dtype)


def precision(device: str, dtype: str) -> contextlib.AbstractContextManager:
    return torch.autocast(device, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()


def sets_needed(nbytes: int, device: str) -> int:
    """How many sets of inputs of this size exceed every cache: twice its size.

    >>> sets_needed(30 * 2**20, "cpu"), sets_needed(2**30, "cpu"), sets_needed(0, "cpu")
    (3, 1, 16)
    """
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else CPU_CACHE_BYTES
    return min(MOST_SETS, math.ceil(2 * cache / max(nbytes, 1)))
