"""Paired blocks: one softmax over the keys of a query's own block and over those of another that is set beside it.

    y_i = sum_{j in block of i} p_ij v_j + sum_r p_ir v'_ur      p_i = softmax_{j, r}(q_i . (k_j, k'_ur) / sqrt(c))

for a query i of block u, whose other keys k'_u are given. Of its own block it sees the real tokens, when causal only up
to itself. A query that sees nothing gets 0. `reference` defines the answer; `triton` has a program for each block, on
the way back too, which reads everything once and keeps nothing.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.paired_blocks import operator, reference
from longspan.kernels.precision import without_autocast

LARGEST, WIDEST = 64, 128


def paired_blocks(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    other_k: Float[Tensor, "b h g j c"],
    other_v: Float[Tensor, "b h g j e"],
    *,
    block: int,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    other_mask: Bool[Tensor, "#b #h g j"] | None = None,
    begun: Bool[Tensor, "b n"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention over own and other keys; of the latter those in `other_mask` are seen, by the queries in `begun`.

    >>> y = paired_blocks(q, k, v, sorted_k, sorted_v, block=64)
    """
    impl = choose(impl, "paired_blocks", q, _unsupported_reason(block, q, k, v, other_k, other_v))
    with without_autocast(q):
        compute = operator.forward if impl == "triton" else reference.paired_blocks
        return compute(q, k, v, other_k, other_v, key_mask, other_mask, begun, block, causal)


def is_faster(block: int, *tensors: Float[Tensor, "..."]) -> bool:
    """Whether there is a kernel for q, k, v and the others, which is quicker than to lay both blocks side by side."""
    return choose("auto", "paired_blocks", tensors[0], _unsupported_reason(block, *tensors)) == "triton"


def _unsupported_reason(block: int, *tensors: Float[Tensor, "..."]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    (q, _, v, other_k, _), types = tensors, {x.dtype for x in tensors}
    half = q.dtype in (torch.bfloat16, torch.float16) or (q.dtype == torch.float32 and q.device.type == "cpu")
    if len(types) > 1 or not half:
        found = ", ".join(sorted(map(str, types)))
        return f"it takes tensors all in one half precision (float32 on a CPU), got {found}"
    if max(block, other_k.shape[3]) > LARGEST:
        return f"blocks may have {LARGEST} tokens, got {block} and {other_k.shape[3]}"
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"heads may be {WIDEST} wide, got {q.shape[3]} and {v.shape[3]}"
    return "" if all(x.numel() for x in tensors) else "there are no tokens"
