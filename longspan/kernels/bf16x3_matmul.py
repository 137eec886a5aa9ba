"""A matrix product in single precision on bfloat16 tensor cores: W as the sum of three matrices of bfloat16.

    x W = (x, x, x) (W_1, W_2, W_3)^T      W_1 = W rounded, W_2 the remainder rounded, W_3 the last remainder

float32 has three times the digits of bfloat16, so nothing of W is lost, and where x is bfloat16 every product is exact;
sums run in float32. Tensor cores do three times the work in a quarter of the time. A float32 x would need six products
and copies of all its parts, which is not faster.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.operator import operator
from longspan.kernels.precision import at_least_single

PARTS = 3
AMPERE = (8, 0)  # the first GPUs with bfloat16 tensor cores


@torch.no_grad()
def bf16x3_matmul(x: Float[Tensor, "t d"], w: Float[Tensor, "d m"]) -> Float[Tensor, "t m"]:
    """x W in single precision or better, in parts where x is bfloat16 on a GPU; it has no gradient."""
    if x.dtype == torch.bfloat16 and x.device.type == "cuda":
        return by_parts(x, w)
    x = at_least_single(x)
    return x @ w.to(x.dtype)


@operator(
    "bf16x3_matmul",
    fake=lambda x, w: x.new_empty(x.shape[0], w.shape[1], dtype=torch.float32),
    flops=lambda x, w: 2 * math.prod(x) * w[1],  # counted as one product, whatever the number of parts
)
def by_parts(x: Tensor, w: Tensor) -> Tensor:
    """The same for a bfloat16 x; an operator, since torch.compile cannot lower `out_dtype`."""
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) >= AMPERE:
        return torch.mm(x.repeat(1, PARTS), torch.cat(parts_of(w)), out_dtype=torch.float32)
    return x.repeat(1, PARTS).float() @ torch.cat(parts_of(w)).float()


def parts_of(w: Float[Tensor, "d m"]) -> list[Float[Tensor, "d m"]]:
    """bfloat16 matrices that add up to w."""
    parts = []
    for _ in range(PARTS):
        parts.append(w.bfloat16())
        w = w - parts[-1]
    return parts
