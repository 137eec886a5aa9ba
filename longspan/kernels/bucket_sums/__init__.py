"""Sums of the values in a query's bucket, over several hashes, with the gradient that YOSO defines for them.

    u_i = sum_s sum_{j : code_s(k_j) = code_s(q_i)} v_j      when causal over j <= i
    dq_i = slope sum_s sum_j (du_i . v_j) k_j     dk_j = slope sum_s sum_i (du_i . v_j) q_i     dv_j = sum_s sum_i du_i

over the same pairs. Time and memory are linear in the length whatever the buckets, and but for the codes memory does
not grow with the number of hashes. In float32 or better. For each hash queries and keys are sorted by code together, a
key before the query at its position. `reference` cuts that order into blocks, with torch operations. `triton` walks
along it and keeps the sums of one bucket on chip; products are in the precision of v. Both are deterministic.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.bucket_sums import operator, reference
from longspan.kernels.bucket_sums.reference import agreements
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.precision import at_least_single

__all__ = ["agreements", "bucket_sums"]

WIDEST = 128  # channels of a head, whose products with those of a value stay in registers


def bucket_sums(
    q: Float[Tensor, "b h n c"] | None,
    k: Float[Tensor, "b h m c"] | None,
    v: Float[Tensor, "b h m e"],
    query_codes: Int[Tensor, "b h n s"],
    key_codes: Int[Tensor, "b h m s"],
    *,
    slope: float = 0.0,
    causal: bool = False,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """u as above; q and k are needed only for their gradients. Codes sort faster in a small integer type.

    >>> ones, codes = torch.ones(1, 1, 4, 1), torch.tensor([5, 7, 5, 5]).view(1, 1, 4, 1)
    >>> bucket_sums(None, None, ones, codes, codes, causal=True).flatten().tolist()
    [1.0, 1.0, 2.0, 3.0]
    """
    if choose(impl, "bucket_sums", v, _unsupported_reason(q, v, query_codes)) == "triton":
        return operator.forward(q, k, v, query_codes, key_codes, slope, causal)
    return reference.bucket_sums(q, k, at_least_single(v), query_codes, key_codes, slope, causal)


def _unsupported_reason(
    q: Float[Tensor, "b h n c"] | None, v: Float[Tensor, "b h m e"], codes: Int[Tensor, "b h n s"]
) -> str:
    if v.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes float32 or half precision, got {v.dtype}"
    widths = [x.shape[3] for x in (q, v) if x is not None]
    if max(widths) > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {' and '.join(map(str, widths))}"
    return "" if v.numel() and codes.numel() else "there are no tokens"
