"""Running mean: at each token the mean of all real tokens up to it.

    m_t = sum_{s <= t} x_s / max(1, number of real s <= t)

over the real tokens s; 0 before the first. Sums run in float32 or better and the result has the type of x. `reference`
defines the answer; `triton` reads x twice and writes nothing else that is large.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.precision import without_autocast
from longspan.kernels.running_mean import operator, reference

WIDEST = 256


def running_mean(
    x: Float[Tensor, "b h n c"], *, mask: Bool[Tensor, "b n"] | None = None, impl: Implementation = "auto"
) -> Float[Tensor, "b h n c"]:
    impl = choose(impl, "running_mean", x, _unsupported_reason(x))
    with without_autocast(x):
        return (operator.forward if impl == "triton" else reference.running_mean)(x, mask)


def _unsupported_reason(x: Float[Tensor, "b h n c"]) -> str:
    """What keeps the kernel from these tokens, if anything."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes float32 or half precision, got {x.dtype}"
    if x.shape[3] > WIDEST:
        return f"tokens must be at most {WIDEST} wide, got {x.shape[3]}"
    return "" if x.numel() else "there are no tokens"
