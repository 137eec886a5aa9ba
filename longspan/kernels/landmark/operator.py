"""Landmark attention as torch operators, and how their Triton programs are launched."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import lack_of_room
from longspan.kernels.landmark.reference import FLOOR
from longspan.kernels.launch import Shape, as_bytes, ceil, empty_like, next_power_of_2, readable, strides
from longspan.kernels.operator import Maybe, differentiate, like, operator

# Tokens of a tile and warps of a program, by bytes per element.
TILES = {2: (64, 4), 4: (16, 8)}
WIDE, WIDEST, MOST = 64, 128, 64 * 128  # channels and elements of the few, which stay on chip
WIDE_BYTES = 164 * 1024  # of shared memory, more than small GPUs have, for more than WIDE
MERGED = 16  # queries whose parts a program of `merge` combines


@dataclass(frozen=True)
class LandmarkShape(Shape):
    r: int  # landmarks
    c: int
    e: int
    size: int  # bytes per element

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
    """Why a kernel cannot take these tokens with this many landmarks, or ""."""
    width = max((x.shape[3], *widths))
    widest = WIDEST if x.element_size() == 2 else WIDE
    # by comparing: the power of two above `few` would tie a compiled graph to one number of landmarks
    if width > widest or few > widest or few > MOST // next_power_of_2(width):
        return f"{few} of {width} channels do not fit on a chip; 64 of 64 do, in bfloat16 one of these may be {WIDEST}"
    if not (x.numel() and few and all(widths)):
        return "there is nothing to compare"
    return lack_of_room(x, WIDE_BYTES) if width > WIDE or few > WIDE else ""


def _contiguous(*tensors: Maybe) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _pool_flops(k: Any, v: Any, r: int, *, products: tuple[int, int]) -> int:
    return 2 * math.prod(k[:3]) * r * (products[0] * k[3] + products[1] * v[3])


@operator(
    "landmark_pool",
    fake=lambda q, k, v, *rest: (q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])),
    flops=lambda q, k, v, *rest: _pool_flops(k, v, q[2], products=(1, 1)),
)
def pool(q: Tensor, k: Tensor, v: Tensor, key_mask: Maybe, key_norm: float, step: int) -> tuple[Tensor, Tensor]:
    """y and lse; `step` is 0 where all queries see all keys."""
    from longspan.kernels.landmark import triton

    q, k, v, mask, shape = q.contiguous(), readable(k), readable(v), as_bytes(key_mask), LandmarkShape.of(k, q, v)
    (b, h, r, _), m, e, constants = q.shape, k.shape[2], v.shape[3], shape.constants
    parts = shape.parts(m)
    if shape.size == 2 and not shape.wide:
        constants["num_stages"] = 3
    partial_y, partial_lse = q.new_empty(parts, b, h, r, e), q.new_empty(parts, b, h, r)
    y, lse = torch.empty_like(partial_y[0]), torch.empty_like(partial_lse[0])
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.pool[(b * h, parts)](
            q, k, v, mask, partial_y, partial_lse, h, m, shape.tokens_per_part(m), key_norm, *strides(k, v),
            MASKED=mask is not None, STEP=step, **constants,
        )  # fmt: skip
        triton.merge[(ceil(b * h * r, MERGED),)](
            partial_y, partial_lse, y, lse, parts, b * h * r, e=e, E=next_power_of_2(e), B=MERGED
        )
    return y, lse


@operator(
    "landmark_pool_backward",
    fake=lambda dy, dlse, y, lse, q, k, v, *rest: (q.new_empty(q.shape), *like(k, v)),
    flops=lambda dy, dlse, y, lse, q, k, v, *rest: _pool_flops(k, v, q[2], products=(3, 2)),
)
def pool_backward(
    dy: Tensor, dlse: Tensor, y: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, key_mask: Maybe, key_norm: float,
    step: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from longspan.kernels.landmark import triton

    (dk, dv), mask, shape, h, m = like(k, v), as_bytes(key_mask), LandmarkShape.of(k, q, v), k.shape[1], k.shape[2]
    dy, dlse, q, y, lse = _contiguous(dy, dlse, q, y, lse)
    k, v, dq = readable(k), readable(v), q.new_empty(shape.parts(m), *q.shape)
    with torch.cuda.device_of(q):
        triton.pool_backward[(shape.pairs, len(dq))](
            dy, dlse, q, y, lse, k, v, mask, dq, dk, dv, h, m, shape.tokens_per_part(m), key_norm,
            *strides(k, v, dk, dv), MASKED=mask is not None, STEP=step, **shape.constants,
        )  # fmt: skip
    return dq.sum(dim=0), dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.key_norm, ctx.step = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)  # softmax attention does not use lse


def _pool_gradients(ctx: Any, dy: Maybe, dlse: Maybe) -> tuple[Maybe, ...]:
    y, lse, *inputs = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dlse = torch.zeros_like(lse) if dlse is None else dlse
    return *pool_backward(dy, dlse, y, lse, *inputs, ctx.key_norm, ctx.step), None, None, None


pool.register_autograd(_pool_gradients, setup_context=_save)  # not `differentiate`: both outputs have a gradient


def _attend_flops(q: Any, k: Any, v: Any, center: Any, *, products: tuple[int, int]) -> int:
    """A second factor doubles the products with q."""
    return 2 * math.prod(q[:3]) * k[2] * ((1 if center is None else 2) * products[0] * q[3] + products[1] * v[3])


def _flags(shift: Maybe, center: Maybe, mask: Maybe) -> dict[str, Any]:
    return {"SHIFTED": shift is not None, "FACTOR": center is not None, "MASKED": mask is not None, "floor": FLOOR}


@operator(
    "landmark_attend",
    fake=lambda q, k, v, *rest: empty_like(q, v.shape[3], q.dtype),
    flops=lambda q, k, v, shift, center, *rest: _attend_flops(q, k, v, center, products=(1, 1)),
)
def attend(
    q: Tensor, k: Tensor, v: Tensor, shift: Maybe, center: Maybe, base: Maybe, query_mask: Maybe, beta: float
) -> Tensor:
    from longspan.kernels.landmark import triton

    y, shape, h, n = empty_like(q, v.shape[3], q.dtype), LandmarkShape.of(q, k, v), q.shape[1], q.shape[2]
    q, mask = readable(q), as_bytes(query_mask)
    k, v, shift, center, base = _contiguous(k, v, shift, center, base)
    with torch.cuda.device_of(q):
        triton.attend[(shape.pairs, shape.parts(n))](
            q, k, v, shift, center, base, mask, y, h, n, shape.tokens_per_part(n), beta, *strides(q, y),
            **_flags(shift, center, mask), **shape.constants,
        )  # fmt: skip
    return y


def _widths(k: Tensor, v: Tensor, center: Maybe) -> list[int]:
    return [k.shape[3], v.shape[3], *([] if center is None else [k.shape[3]])]


def _attend_backward_fake(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shift: Maybe, center: Maybe, *rest: Any
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
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shift: Maybe, center: Maybe, base: Maybe, mask: Maybe, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, the gradients of k, v and center side by side, and those of shift and base one above the other."""
    from longspan.kernels.landmark import triton

    (dq,), (b, h, r, _), n, shape = like(q), k.shape, q.shape[2], LandmarkShape.of(q, k, v)
    parts, constants, mask, dy, q = shape.parts(n), shape.constants, as_bytes(mask), readable(dy), readable(q)
    k, v, shift, center, base = _contiguous(k, v, shift, center, base)
    sums = k.new_empty(parts, b, h, r, sum(_widths(k, v, center)))
    starts = k.new_empty(b, h, ceil(n, constants["T"]), 1 if center is None else 2, r)
    with torch.cuda.device_of(q):
        triton.attend_backward[(b * h, parts)](
            dy, q, k, v, shift, center, base, mask, dq, sums, starts, h, n, shape.tokens_per_part(n), beta,
            *strides(dy, q, dq), **_flags(shift, center, mask), **constants,
        )  # fmt: skip
    return dq, sums.sum(dim=0), starts.sum(dim=2)


def _attend_gradients(dy: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    _, k, v, _, center, *_ = inputs
    dq, few, starts = attend_backward(dy, *inputs)
    dk, dv, *dcenter = few.split(_widths(k, v, center), dim=3)
    dshift, *dbase = starts.unbind(dim=2)
    return dq, dk, dv, dshift, *dcenter, *dbase


differentiate(attend, _attend_gradients)
