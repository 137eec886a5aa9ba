"""The layer norm as torch has it."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.precision import at_least_single


def layer_norm(
    x: Float[Tensor, "*rows d"], weight: Float[Tensor, " d"], bias: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "*rows d"]:
    # On a CPU torch would add up the gradients of weight and bias in the precision of x
    given, x = x.dtype, at_least_single(x) if x.device.type == "cpu" else x
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), eps).to(given)
