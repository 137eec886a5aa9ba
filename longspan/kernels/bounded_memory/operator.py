"""Bounded memory as a torch operator, and the shapes its kernels are compiled for."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.launch import NARROWEST, Shape, empty_like, next_power_of_2, readable
from longspan.kernels.operator import differentiate, like, operator

# Tokens of a tile and warps of a program, by bytes per element and whether heads are wider than 64 or there are more
# than 16 slots. What a program needs grows with them until it no longer fits the registers. Tiles of 64 tokens would
# use the tensor cores one warp group at a time, which Triton 3.6 miscompiles here.
TILES = {(2, False): (32, 2), (2, True): (32, 8), (4, False): (16, 8), (4, True): (16, 8)}


@dataclass(frozen=True)
class SlotsShape(Shape):
    """Keys and values that are written into a few slots."""

    PROGRAMS: ClassVar[int] = 1024  # a few times as many as the largest GPUs hold at once

    c: int  # channels of keys
    e: int
    r: int
    size: int  # bytes per element

    @property
    def width(self) -> int:
        """Channels of keys and values, padded to a power of two."""
        return max(next_power_of_2(self.c), next_power_of_2(self.e))

    @property
    def slots(self) -> int:
        return next_power_of_2(self.r)

    @property
    def constants(self) -> dict[str, Any]:
        T, warps = TILES[self.size, self.width > 64 or self.slots > NARROWEST]
        sizes = {"c": self.c, "e": self.e, "r": self.r, "T": T, "num_warps": warps, "num_stages": 2}
        return sizes | {"C": next_power_of_2(self.c), "E": next_power_of_2(self.e), "R": self.slots}


@dataclass(frozen=True)
class MemoryShape(SlotsShape):
    causal: bool

    @classmethod
    def of(
        cls, q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h m e"], control: Float[Tensor, "c r"], causal: bool
    ) -> "MemoryShape":
        return cls(q.shape[0] * q.shape[1], q.shape[3], v.shape[3], control.shape[1], v.element_size(), causal)

    @property
    def constants(self) -> dict[str, Any]:
        return super().constants | {"D": self.width, "CAUSAL": self.causal}

    def states(self, m: int) -> tuple[int, int, int, int, int]:
        """Both memories before each part and after the last: S [width, slots], and below it two rows, z and m."""
        return self.parts(m) + 1, self.pairs, 2, self.width + 2, self.slots


def _forward_fake(q, k, v, control_key, control_value, key_mask, causal):
    states = MemoryShape.of(q, v, control_key, causal).states(k.shape[2])
    return empty_like(q, v.shape[3], v.dtype), q.new_empty(states, dtype=torch.float32)


def _backward_fake(dy, states, q, k, v, control_key, control_value, *rest):
    e = 0 if control_value is None else v.shape[3]
    return *like(q, k, v), torch.empty_like(control_key), control_key.new_empty(e, control_key.shape[1])


def _flops(q, k, v, a, b, *rest) -> int:
    """Logits of every key and value, both into the slots, queries against these, whatever happens within a tile."""
    logits = k[3] if b is None else k[3] + v[3]
    return 2 * math.prod(q[:2]) * a[1] * (k[2] * (logits + k[3] + v[3]) + q[2] * (q[3] + v[3]))


@operator("bounded_memory", fake=_forward_fake, flops=_flops)
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    control_key: Tensor,
    control_value: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """y, and for the backward pass the slots that each part of a row begins with."""
    from longspan.kernels.bounded_memory import triton

    source = triton.Source.of(k, v, control_key, control_value, key_mask)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.forward(MemoryShape.of(q, v, control_key, causal), readable(q), source)


@operator("bounded_memory_backward", fake=_backward_fake, flops=lambda dy, states, *inputs: 2 * _flops(*inputs))
def backward(
    dy: Tensor,
    states: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    control_key: Tensor,
    control_value: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and of both controls; without a control of values the last one is empty."""
    from longspan.kernels.bounded_memory import triton

    source = triton.Source.of(k, v, control_key, control_value, key_mask)
    with torch.cuda.device_of(q):
        shape = MemoryShape.of(q, v, control_key, causal)
        dq, dk, dv, (da, db) = triton.backward(shape, readable(dy), readable(q), source, states.contiguous())
    (c, r), e = control_key.shape, 0 if control_value is None else v.shape[3]
    return dq, dk, dv, da[:c, :r].to(control_key.dtype, copy=True), db[:e, :r].to(control_key.dtype, copy=True)


differentiate(forward, backward, saved=(1,))
