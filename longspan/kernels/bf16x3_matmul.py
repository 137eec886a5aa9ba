"""A product in single precision at the speed of half precision: W as the sum of three matrices of bfloat16.

    x W = (x, x, x) (W_1, W_2, W_3)^T      W_1 = W rounded, W_2 the rest rounded, W_3 what then is left

A number of single precision has three times the digits of bfloat16, so nothing of W is lost, and where x is bfloat16
too every product is exact: sums run in float32, as they would anyway. Tensor cores do three times the work in a quarter
of the time. An x of single precision would need six products and copies of all its parts, which is not worth it.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.precision import at_least_single

PARTS = 3
AMPERE = (8, 0)  # the first GPUs whose tensor cores know bfloat16


@torch.no_grad()
def bf16x3_matmul(x: Float[Tensor, "t d"], w: Float[Tensor, "d m"]) -> Float[Tensor, "t m"]:
    """x W in single precision or better, by parts where x is bfloat16 on a GPU; it carries no gradient."""
    if x.dtype == torch.bfloat16 and x.device.type == "cuda":
        return by_parts(x, w)
    x = at_least_single(x)
    return x @ w.to(x.dtype)


@torch.library.custom_op("longspan::bf16x3_matmul", mutates_args=())
def by_parts(x: Tensor, w: Tensor) -> Tensor:
    """The same for an x of bfloat16; an operator, since not every compiler of graphs knows the product it makes."""
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) >= AMPERE:
        return torch.mm(x.repeat(1, PARTS), torch.cat(parts_of(w)), out_dtype=torch.float32)
    return x.repeat(1, PARTS).float() @ torch.cat(parts_of(w)).float()


@by_parts.register_fake
def _(x, w):
    return x.new_empty(x.shape[0], w.shape[1], dtype=torch.float32)


def parts_of(w: Float[Tensor, "d m"]) -> list[Float[Tensor, "d m"]]:
    """Matrices of bfloat16 that add up to w."""
    parts = []
    for _ in range(PARTS):
        parts.append(w.bfloat16())
        w = w - parts[-1]
    return parts


@counts(torch.ops.longspan.bf16x3_matmul)
def _bf16x3_matmul(x: Any, w: Any, *rest: Any, **options: Any) -> int:
    """One product, in however many parts it is made."""
    return 2 * math.prod(x) * w[1]
