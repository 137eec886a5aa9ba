"""All chunks of a running covariance as a torch operator, and how its Triton programs are launched."""

import math

import torch
from torch import Tensor

from longspan.kernels.launch import next_power_of_2
from longspan.kernels.operator import differentiate, operator

CHUNK = 64  # tokens of a program
NUMBERS = 1024  # elements of a covariance per warp, 32 per thread


def _like(q: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _flops(q: tuple[int, ...], *others: tuple[int, ...]) -> int:
    """Adding a token to the covariance, and mixing its value."""
    return 4 * math.prod(q) * q[3]


@operator("running_covariance", fake=_like, flops=_flops)
def forward(
    q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, covariance: Tensor, square_q: Tensor, square_k: Tensor
) -> Tensor:
    """y [b h t c], from the sums before each chunk [b h chunks ...] and a temperature for each head."""
    from longspan.kernels.running_covariance import triton

    inputs = [x.contiguous() for x in (q, k, v, temperature, covariance, square_q, square_k)]
    y = _like(q)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.forward[_grid(covariance)](*inputs, y=y, **_sizes(q, covariance))
    return y


def _empty_gradients(dy: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    b, h, chunks = inputs[4].shape[:3]
    like = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    return (*like[:3], inputs[3].new_empty(b, h, chunks), *like[4:])


@operator("running_covariance_backward", fake=_empty_gradients, flops=lambda dy, q, *others: 12 * math.prod(q) * q[3])
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor,
    covariance: Tensor,
    square_q: Tensor,
    square_k: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of all inputs, that of the temperature in parts [b h chunks]."""
    from longspan.kernels.running_covariance import triton

    inputs = [x.contiguous() for x in (dy, q, k, v, temperature, covariance, square_q, square_k)]
    found = _empty_gradients(*inputs)
    with torch.cuda.device_of(q):
        triton.backward[_grid(covariance)](*inputs, *found, **_sizes(q, covariance))
    return found  # pyright: ignore[reportReturnType]


def _grid(covariance: Tensor) -> tuple[int]:
    return (math.prod(covariance.shape[:3]),)


def _sizes(q: Tensor, covariance: Tensor) -> dict[str, int]:
    (_, h, t, c), C = q.shape, next_power_of_2(q.shape[3])
    launch = {"c": c, "C": C, "TOKENS": CHUNK, "num_warps": max(1, C * C // NUMBERS)}
    return {"h": h, "t": t, "chunks": covariance.shape[2], **launch}


def _gradients(dy: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    dq, dk, dv, parts, *sums = backward(dy, *inputs)
    return dq, dk, dv, parts.sum(dim=(0, 2)), *sums


differentiate(forward, _gradients)
