"""Records: the numbers of a row that are among the few largest so far, while a budget lasts.

    record_i    x_i > the `among`-th largest of x_1 ... x_(i-1), equal ones counted each; -inf is none
    chosen_i    a record, while fewer than budget_i were chosen before it; budgets never fall

`reference` defines the answer, in some tens of passes; `triton` goes along each row once.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.running_topk import operator, reference

MOST = 16  # largest ones that a program keeps


@torch.no_grad()
def records(
    x: Float[Tensor, "b h n"], budget: Int[Tensor, "#b n"], among: int, *, impl: Implementation = "auto"
) -> Bool[Tensor, "b h n"]:
    """Which numbers are chosen.

    >>> records(torch.tensor([[[1.0, 3.0, 2.0, 5.0]]]), torch.tensor([[1, 1, 2, 3]]), 1)
    tensor([[[ True, False, False,  True]]])
    """
    if choose(impl, "records", x, _unsupported_reason(x, among)) == "triton":
        return operator.records(x, budget, among)
    return reference.records(x, budget, among)


def _unsupported_reason(x: Float[Tensor, "b h n"], among: int) -> str:
    """What keeps the kernel from these numbers, if anything."""
    if x.dtype != torch.float32:
        return f"it takes float32, got {x.dtype}"
    if among > MOST:
        return f"it keeps the {MOST} largest at most, got {among}"
    return "" if x.numel() else "there are no numbers"
