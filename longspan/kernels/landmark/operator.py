"""Landmark attention as torch operators, and the shapes their kernels are compiled for."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import lack_of_room
from longspan.kernels.launch import Shape, as_bytes, empty_like, next_power_of_2, readable
from longspan.kernels.operator import differentiate, like, operator

# Tokens of a tile and warps of a program, by bytes of a number.
TILES = {2: (64, 4), 4: (16, 8)}
WIDE, WIDEST, MOST = 64, 128, 64 * 128  # channels and numbers of the few, which stay on chip
WIDE_BYTES = 164 * 1024  # of shared memory, more than small GPUs have, for more than WIDE


@dataclass(frozen=True)
class LandmarkShape(Shape):
    r: int  # landmarks
    c: int
    e: int
    size: int  # bytes of a number

    @classmethod
    def of(cls, many: Tensor, few: Tensor, v: Tensor) -> "LandmarkShape":
        return cls(many.shape[0] * many.shape[1], few.shape[2], few.shape[3], v.shape[3], many.element_size())

    @property
    def wide(self) -> bool:
        return max(self.r, self.c, self.e) > WIDE

    @property
    def constants(self) -> dict[str, Any]:
        sizes = {"r": self.r, "c": self.c, "e": self.e}
        T, warps = TILES[self.size]
        filled = {name.upper(): next_power_of_2(size) for name, size in sizes.items()}
        return sizes | filled | {"T": T, "num_warps": warps, "num_stages": 2}


def unsupported_reason(x: Float[Tensor, "b h n c"], few: int, *widths: int) -> str:
    """Why a kernel cannot set these tokens against so many others, or ""."""
    width = max((x.shape[3], *widths))
    widest = WIDEST if x.element_size() == 2 else WIDE
    if max(width, few) > widest or next_power_of_2(few) * next_power_of_2(width) > MOST:
        return f"{few} of {width} channels do not fit on a chip; 64 of 64 do, in bfloat16 one of these may be {WIDEST}"
    if not (x.numel() and few and all(widths)):
        return "there is nothing to compare"
    return lack_of_room(x, WIDE_BYTES) if max(width, few) > WIDE else ""


def _contiguous(x: Tensor | None) -> Any:
    return None if x is None else x.contiguous()


def _pool_flops(k: Any, v: Any, r: int, *, products: tuple[int, int]) -> int:
    return 2 * math.prod(k[:3]) * r * (products[0] * k[3] + products[1] * v[3])


@operator(
    "landmark_pool",
    fake=lambda q, k, v, key_mask, key_norm: (q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])),
    flops=lambda q, k, v, *rest: _pool_flops(k, v, q[2], products=(1, 1)),
)
def pool(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, key_norm: float) -> tuple[Tensor, Tensor]:
    from longspan.kernels.landmark import triton

    with torch.cuda.device_of(q):  # Triton launches on the current device
        return triton.pool(q.contiguous(), readable(k), readable(v), as_bytes(key_mask), key_norm)


@operator(
    "landmark_pool_backward",
    fake=lambda dy, dlse, y, lse, q, k, v, key_mask, key_norm: (q.new_empty(q.shape), *like(k, v)),
    flops=lambda dy, dlse, y, lse, q, k, v, *rest: _pool_flops(k, v, q[2], products=(3, 2)),
)
def pool_backward(
    dy: Tensor,
    dlse: Tensor,
    y: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    key_norm: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from longspan.kernels.landmark import triton

    (dk, dv), mask = like(k, v), as_bytes(key_mask)
    dy, dlse, y, lse, q = (x.contiguous() for x in (dy, dlse, y, lse, q))
    with torch.cuda.device_of(q):
        return triton.pool_backward(dy, dlse, y, lse, q, readable(k), readable(v), mask, key_norm, dk, dv)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.key_norm = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)  # softmax attention does not use lse


def _pool_gradients(ctx: Any, dy: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    y, lse, *inputs = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    return *pool_backward(dy, dlse, y, lse, *inputs, ctx.key_norm), None, None


pool.register_autograd(_pool_gradients, setup_context=_save)  # not `differentiate`: both outputs have a gradient


def _attend_flops(q: Any, k: Any, v: Any, center: Any, *, products: tuple[int, int]) -> int:
    """A second factor doubles the products with q."""
    return 2 * math.prod(q[:3]) * k[2] * ((1 if center is None else 2) * products[0] * q[3] + products[1] * v[3])


@operator(
    "landmark_attend",
    fake=lambda q, k, v, *rest: empty_like(q, v.shape[3], q.dtype),
    flops=lambda q, k, v, shift, center, *rest: _attend_flops(q, k, v, center, products=(1, 1)),
)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shift: Tensor | None,
    center: Tensor | None,
    base: Tensor | None,
    query_mask: Tensor | None,
    beta: float,
) -> Tensor:
    from longspan.kernels.landmark import triton

    k, v, shift, center, base = map(_contiguous, (k, v, shift, center, base))
    y = empty_like(q, v.shape[3], q.dtype)
    with torch.cuda.device_of(q):
        triton.attend(readable(q), k, v, shift, center, base, as_bytes(query_mask), beta, y)
    return y


def _widths(k: Tensor, v: Tensor, center: Tensor | None) -> list[int]:
    return [k.shape[3], v.shape[3], *([] if center is None else [k.shape[3]])]


def _attend_backward_fake(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shift: Any, center: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    b, h, r, _ = k.shape
    few = k.new_empty(b, h, r, sum(_widths(k, v, center)))
    return like(q)[0], few, k.new_empty(b, h, 1 if center is None else 2, r)


@operator(
    "landmark_attend_backward",
    fake=_attend_backward_fake,
    flops=lambda dy, q, k, v, shift, center, *rest: _attend_flops(q, k, v, center, products=(3, 2)),
)
def attend_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shift: Tensor | None,
    center: Tensor | None,
    base: Tensor | None,
    query_mask: Tensor | None,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, the gradients of k, v and center side by side, and those of shift and base one above the other."""
    from longspan.kernels.landmark import triton

    (dq,), mask = like(q), as_bytes(query_mask)
    k, v, shift, center, base = map(_contiguous, (k, v, shift, center, base))
    with torch.cuda.device_of(q):
        return dq, *triton.attend_backward(readable(dy), readable(q), k, v, shift, center, base, mask, beta, dq)


def _attend_gradients(dy: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    _, k, v, _, center, *_ = inputs
    dq, few, starts = attend_backward(dy, *inputs)
    dk, dv, *dcenter = few.split(_widths(k, v, center), dim=3)
    dshift, *dbase = starts.unbind(dim=2)
    return dq, dk, dv, dshift, *dcenter, *dbase


differentiate(attend, _attend_gradients)
