"""Running top-k: the numbers of a row that are among the k largest so far, while a budget lasts.

    candidate_i   x_i > the k-th largest of x_1 ... x_(i-1), equal ones counted each; -inf never is
    chosen_i      a candidate, while fewer than budget_i were chosen before it; budgets never fall

`reference` defines the answer, in some tens of passes; `triton` goes along each row once.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.running_topk import operator, reference

LARGEST_K = 16  # numbers that a program keeps


@torch.no_grad()
def running_topk(
    x: Float[Tensor, "b h n"], budget: Int[Tensor, "#b n"], k: int, *, impl: Implementation = "auto"
) -> Bool[Tensor, "b h n"]:
    """Which numbers are chosen.

    >>> running_topk(torch.tensor([[[1.0, 3.0, 2.0, 5.0]]]), torch.tensor([[1, 1, 2, 3]]), 1)
    tensor([[[ True, False, False,  True]]])
    """
    impl = choose(impl, "running_topk", x, _unsupported_reason(x, k))
    return (operator.running_topk if impl == "triton" else reference.running_topk)(x, budget, k)


def _unsupported_reason(x: Float[Tensor, "b h n"], k: int) -> str:
    if x.dtype != torch.float32:
        return f"it takes float32, got {x.dtype}"
    if k > LARGEST_K:
        return f"k may be {LARGEST_K} at most, got {k}"
    return "" if x.numel() else "there are no numbers"
