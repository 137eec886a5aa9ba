"""Near and far: one softmax over the keys of a neighbourhood, one by one, and over far keys that stand for many.

    y_i = sum_{j in N(i)} p_ij v_j + sum_{r in R(i)} p_ir v'_r      p_i = softmax_{j, r}(q_i . (k_j, k'_r) / sqrt(c))

    N(i)    the real tokens of the block of `step` tokens that holds i, `left` tokens before and `right` after it
    R(i)    all far keys, or where they sum up chunks, `rank` for each: those of the chunks before that of i

Every query must see a key. `reference` defines the answer and has a matrix of all pairs; `triton` makes only those
that somebody sees, copies nothing whatever the order of axes, and gives the same bits in every run.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import HAS_TRITON, Implementation, choose
from longspan.kernels.near_far import operator, reference
from longspan.kernels.precision import without_autocast

WIDEST = 128


def near_far(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    far_k: Float[Tensor, "b h f c"],
    far_v: Float[Tensor, "b h f c"],
    *,
    step: int = 1,
    left: int = 0,
    right: int = 0,
    chunk: int | None = None,
    rank: int = 1,
    key_mask: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n c"]:
    """Attention of every query over near and far keys; a `chunk` makes the far ones causal.

    >>> y = near_far(q, k, v, far_k, far_v, left=511, chunk=16)      # a causal window of 512, a far key for 16 tokens
    """
    impl = choose(impl, "near_far", q, _unsupported_reason(q, k, v, far_k, far_v))
    how = (key_mask, step, left, right, chunk or 0, rank)
    with without_autocast(q):
        if impl == "reference":
            return reference.near_far(q, k, v, far_k, far_v, *how)
        return operator.forward(q, k, v, far_k, far_v, *how)[0]


def is_faster(q: Float[Tensor, "b h n c"], dropout: float) -> bool:
    """Whether there is a kernel for such queries that is quicker than copies of the keys for each tile of queries."""
    half = q.dtype in (torch.bfloat16, torch.float16)
    return HAS_TRITON and q.device.type == "cuda" and half and q.shape[3] <= WIDEST and q.numel() > 0 and not dropout


def _unsupported_reason(*tensors: Float[Tensor, "b h _ c"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    q, types = tensors[0], {x.dtype for x in tensors}
    if len(types) > 1 or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes tensors all in float32 or all in half precision, got {', '.join(sorted(map(str, types)))}"
    if q.shape[3] > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {q.shape[3]}"
    return "" if q.numel() else "there are no tokens"
