"""The Triton kernel as an operator of torch, which torch.compile takes into its graph unopened."""

import torch
from torch import Tensor


@torch.library.custom_op("longspan::nearest_direction", mutates_args=())
def nearest_direction(u: Tensor, factors: list[int], offset: Tensor | None) -> Tensor:
    """[*n m] of u [*n m half] and offset [m half]."""
    from longspan.kernels.nearest_direction import triton

    with torch.cuda.device_of(u):  # Triton launches on the current device
        return triton.nearest_direction(u.contiguous(), factors, None if offset is None else offset.contiguous())


@nearest_direction.register_fake
def _(u, factors, offset):
    return u.new_empty(u.shape[:-1], dtype=torch.long)
