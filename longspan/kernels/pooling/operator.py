"""Pooling as torch operators, and how their Triton programs are launched."""

import math
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.launch import Shape, as_bytes, ceil, empty_like, next_power_of_2, readable, strides
from longspan.kernels.operator import differentiate, like, operator
from longspan.kernels.running_sum import before, running_sum

# Normed means: tokens of a tile at most, warps of a program and tiles in flight, by bytes per element and whether the
# width is above 64.
SHAPES = {(2, False): (64, 4, 3), (2, True): (32, 8, 2), (4, False): (16, 8, 2)}
SOFTMAX_TILE = {2: 128, 4: 32}  # tokens, by bytes per element
SOFTMAX_TILES = 4  # of a part at least
RUNNING_TILE = 4_096  # elements


@operator(
    "normed_means",
    fake=lambda x, weight, bias, mask, begins, segments, eps: weight.new_empty(*x.shape[:2], segments, x.shape[3]),
    flops=lambda x, *rest: 2 * math.prod(x) * x[3],
)
def normed_means(
    x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, segments: int, eps: float
) -> Tensor:
    """The means; a mask comes with [b r+1], where the segments of each row begin."""
    from longspan.kernels.pooling import triton

    x, (b, h, n, c) = readable(x), x.shape
    found, (parts, launch) = weight.new_empty(b, h, segments, c), _normed_launch(x, segments)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        triton.normed_means[(b * h, parts)](
            x, weight.contiguous(), bias.contiguous(), as_bytes(mask), begins, found, h, n, segments,
            ceil(segments, parts), eps, *strides(x), MASKED=mask is not None, **launch,
        )  # fmt: skip
    return found


@operator(
    "normed_means_backward",
    fake=lambda dmeans, x, weight, *rest: (*like(x), weight.new_empty(x.shape[3], x.shape[3] + 1)),
    flops=lambda dmeans, x, *rest: 6 * math.prod(x) * x[3],
)
def normed_means_backward(
    dmeans: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, begins: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """dx, and the gradients of weight and, as one more column, of bias."""
    from longspan.kernels.pooling import triton

    (dx,), x, (b, h, n, c), segments = like(x), readable(x), x.shape, dmeans.shape[2]
    parts, launch = _normed_launch(x, segments)
    sums = weight.new_empty(parts * b * h, c, c + 1)
    with torch.cuda.device_of(x):
        triton.normed_means_backward[(b * h, parts)](
            dmeans.contiguous(), x, weight.contiguous(), bias.contiguous(), as_bytes(mask), begins, dx, sums, h, n,
            segments, ceil(segments, parts), eps, *strides(x, dx), MASKED=mask is not None, **launch,
        )  # fmt: skip
        return dx, sums.sum(dim=0)


def _normed_launch(x: Tensor, segments: int) -> tuple[int, dict[str, int]]:
    """How many programs share the segments of a row, as few as fill the device since each writes dW; and constants."""
    b, h, n, c = x.shape
    T, warps, stages = SHAPES[x.element_size(), c > 64]
    T = min(T, next_power_of_2(ceil(n, segments)))  # a tile has tokens of one segment only
    parts = min(ceil(Shape.PROGRAMS, b * h), segments)
    return parts, {"c": c, "C": next_power_of_2(c), "T": T, "num_warps": warps, "num_stages": stages}


def _normed_gradients(dmeans: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, _, eps = inputs
    dx, dboth = normed_means_backward(dmeans, *tensors, eps)
    return dx, dboth[:, :-1], dboth[:, -1]


differentiate(normed_means, _normed_gradients)


def _softmax_launch(a: Tensor, x: Tensor) -> dict[str, int]:
    (n, c), r, size = x.shape[2:], a.shape[3], x.element_size()
    T = min(SOFTMAX_TILE[size], next_power_of_2(n))
    warps = 2 * size if T > 16 else 1
    return {"r": r, "c": c, "R": next_power_of_2(r), "C": next_power_of_2(c), "T": T, "num_warps": warps}


def _empty_pools(a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    (b, h, _, c), r = x.shape, a.shape[3]
    return x.new_empty(b, h, r, c), x.new_empty(b, h, r, dtype=torch.float32)


@operator("softmax_pooling", fake=_empty_pools, flops=lambda a, x, mask: 2 * math.prod(x) * a[3])
def softmax_pooling(a: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The means, and the log-sum-exp of the logits of each [b h r], for the backward pass."""
    from longspan.kernels.pooling import triton

    a, x, (b, h, n, c), r, launch = readable(a), readable(x), x.shape, a.shape[3], _softmax_launch(a, x)
    parts = max(1, min(ceil(Shape.PROGRAMS, b * h), ceil(n, SOFTMAX_TILES * launch["T"])))
    share = ceil(ceil(n, launch["T"]), parts) * launch["T"]
    s = x.new_empty(parts, b, h, r, c, dtype=torch.float32 if parts > 1 else x.dtype)
    lse = x.new_empty(parts, b, h, r, dtype=torch.float32)
    with torch.cuda.device_of(x):
        triton.softmax_pooling[(b * h, parts)](
            a, x, as_bytes(mask), s, lse, h, n, share, *strides(a, x), MASKED=mask is not None, **launch
        )
    if parts == 1:
        return s[0], lse[0]
    return (s * lse.softmax(dim=0)[..., None]).sum(dim=0).to(x.dtype), lse.logsumexp(dim=0)


@operator(
    "softmax_pooling_backward",
    fake=lambda ds, s, lse, a, x, mask: like(a, x),
    flops=lambda ds, s, lse, a, x, mask: 4 * math.prod(x) * a[3],
)
def softmax_pooling_backward(
    ds: Tensor, s: Tensor, lse: Tensor, a: Tensor, x: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of a and x."""
    from longspan.kernels.pooling import triton

    (da, dx), a, x, (b, h, n, _), launch = like(a, x), readable(a), readable(x), x.shape, _softmax_launch(a, x)
    delta = (ds.float() * s.float()).sum(dim=-1)
    with torch.cuda.device_of(x):
        triton.softmax_pooling_backward[(b * h, ceil(n, launch["T"]))](
            ds.contiguous(), delta, lse.contiguous(), a, x, as_bytes(mask), da, dx, h, n, *strides(a, x, da, dx),
            MASKED=mask is not None, **launch,
        )  # fmt: skip
    return da, dx


differentiate(softmax_pooling, softmax_pooling_backward)


def _run(x: Tensor, mask: Tensor | None, *, backward: bool) -> Tensor:
    from longspan.kernels.pooling import triton

    x, (b, h, n, c), C, counts = readable(x), x.shape, next_power_of_2(x.shape[3]), None
    T = max(16, RUNNING_TILE // C)
    if mask is not None:
        mask = mask.contiguous()
        counts = mask.cumsum(dim=1, dtype=torch.int32).clamp(min=1)
    sums, y = x.new_empty(b, h, ceil(n, T), c, dtype=torch.float32), empty_like(x, c, x.dtype)
    launch = {"c": c, "C": C, "T": T, "BACKWARD": backward, "MASKED": mask is not None, "num_warps": 4}
    given, grid = (x, as_bytes(mask), counts), (sums.shape[2], b * h)
    with torch.cuda.device_of(x):
        triton.running_sums[grid](*given, sums, h, n, *strides(x), **launch)
        sums = sums.flip(2) if backward else sums
        sums = before(running_sum(sums)[..., None, :])[..., 0, :]
        sums = sums.flip(2) if backward else sums
        triton.running_means[grid](*given, sums.contiguous(), y, h, n, *strides(x, y), **launch)
    return y


@operator("running_mean", fake=lambda x, mask: like(x)[0], flops=lambda x, mask: math.prod(x))
def running_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    return _run(x, mask, backward=False)


@operator("running_mean_backward", fake=lambda dy, x, mask: like(dy)[0], flops=lambda dy, x, mask: math.prod(dy))
def running_mean_backward(dy: Tensor, x: Tensor | None, mask: Tensor | None) -> Tensor:
    return _run(dy, mask, backward=True)


differentiate(running_mean, running_mean_backward, unneeded=(0,))
