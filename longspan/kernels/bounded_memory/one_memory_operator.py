"""Running softmax with one memory as a torch operator, and the shapes its kernels are compiled for."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.bounded_memory.operator import SlotsShape
from longspan.kernels.launch import as_bytes, empty_like, next_power_of_2, readable
from longspan.kernels.operator import differentiate, like, operator


@dataclass(frozen=True)
class OneMemoryShape(SlotsShape):
    compared: bool  # whether queries are compared with the slots, or else are scores

    @classmethod
    def of(cls, k: Tensor, v: Tensor, control: Tensor | None, compared: bool) -> "OneMemoryShape":
        r = k.shape[3] if control is None else control.shape[2]
        return cls(v.shape[0] * v.shape[1], k.shape[3], v.shape[3], r, v.element_size(), compared)

    @property
    def reading(self) -> dict[str, Any]:
        """The width of queries, whether they are compared with the slots or are scores."""
        width = self.e if self.compared else self.r
        return {"w": width, "W": next_power_of_2(width), "COMPARED": self.compared}

    @property
    def scale(self) -> float:
        return self.e**-0.5 if self.compared else 1.0

    def states(self, n: int) -> tuple[int, int, int, int, int]:
        """The memory before each part and after the last: S [e, slots], and below it two rows, z and m."""
        return self.parts(n) + 1, self.pairs, 1, next_power_of_2(self.e) + 2, self.slots


def _forward_fake(q, k, v, control, key_mask, compared):
    states = OneMemoryShape.of(k, v, control, compared).states(v.shape[2])
    return empty_like(v, v.shape[3], v.dtype), v.new_empty(states, dtype=torch.float32)


def _backward_fake(dy, states, q, k, v, control, *rest):
    return *like(q, k, v), v.new_empty(0) if control is None else control.new_empty(control.shape)


def _flops(q, k, v, control, key_mask, compared) -> int:
    """Logits of every key unless given, values into the slots, queries against the slots, and mixing the slots."""
    r, logits = (k[3], 0) if control is None else (control[2], k[3])
    return 2 * math.prod(v[:3]) * r * (logits + v[3] * (3 if compared else 2))


@operator("one_memory", fake=_forward_fake, flops=_flops)
def forward(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | None, key_mask: Tensor | None, compared: bool
) -> tuple[Tensor, Tensor]:
    """y, and for the backward pass the slots that each part of a row begins with."""
    from longspan.kernels.bounded_memory import one_memory_triton as triton

    shape, inputs = OneMemoryShape.of(k, v, control, compared), _readable(q, k, v, control, key_mask)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.forward(shape, *inputs)


@operator("one_memory_backward", fake=_backward_fake, flops=lambda dy, states, *inputs: 2 * _flops(*inputs))
def backward(
    dy: Tensor,
    states: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    control: Tensor | None,
    key_mask: Tensor | None,
    compared: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and of the control; without one the last is empty."""
    from longspan.kernels.bounded_memory import one_memory_triton as triton

    shape, inputs = OneMemoryShape.of(k, v, control, compared), _readable(q, k, v, control, key_mask)
    with torch.cuda.device_of(q):
        dq, dk, dv, dcontrol = triton.backward(shape, readable(dy), states.contiguous(), *inputs)
    if control is None:
        return dq, dk, dv, v.new_empty(0)
    _, c, r = control.shape
    return dq, dk, dv, dcontrol[:, :c, :r].to(control.dtype, copy=True).contiguous()


def _readable(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    control = None if control is None else control.contiguous()
    return readable(q), readable(k), readable(v), control, as_bytes(key_mask)


differentiate(forward, backward, saved=(1,))
