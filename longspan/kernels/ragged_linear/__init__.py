"""Linear attention on ragged rows: real tokens of all rows one behind another, each row summed once and read once.

    y_t = S phi(q_t) / (z . phi(q_t) + eps)      S = sum_s v_s phi(k_s)^T      z = sum_s phi(k_s)

with s over the keys of the row of t. Row i holds the keys `cu_seqlens[i]` to `cu_seqlens[i + 1]`; its queries are the
same tokens, or those that `query_cu_seqlens` says. Sums run in float32 or better, the result has the type of v, and a
row without keys gives 0. `reference` defines the answer; `triton` takes float32 or bfloat16 and widths r and e that are
multiples of 16 up to 128, rounds phi to the type of its inputs, and gives the same bits in every run.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import Implementation, choose, lack_of_room
from longspan.kernels.precision import without_autocast
from longspan.kernels.ragged_linear import operator, reference

WIDEST = 128  # the sums of one row and head, e times r, have to stay on chip
WIDE, WIDE_BYTES = 64, 160 * 1024  # above this width they need more memory on chip than small GPUs have

Feature = Literal["none", "elu"]


def ragged_linear(
    q: Float[Tensor, "n h r"],
    k: Float[Tensor, "t h r"],
    v: Float[Tensor, "t h e"],
    cu_seqlens: Int[Tensor, " b_plus_1"],
    max_seqlen: int,
    *,
    query_cu_seqlens: Int[Tensor, " b_plus_1"] | None = None,
    max_query_seqlen: int | None = None,
    feature: Feature = "none",
    eps: float = 1e-6,
    impl: Implementation = "auto",
) -> Float[Tensor, "n h e"]:
    """Linear attention of every query over the keys of its row; phi(u) is u, or elu(u) + 1 with `feature="elu"`.

    `max_seqlen` is the length of the longest row of keys, known on the host, so that nothing waits for the device; so
    is `max_query_seqlen`, which belongs to `query_cu_seqlens`.

    >>> y = ragged_linear(q, k, v, layout.cu_seqlens, layout.max_seqlen, feature="elu")
    """
    if query_cu_seqlens is None and max_query_seqlen is None:
        query_cu_seqlens, max_query_seqlen = cu_seqlens, max_seqlen
    if query_cu_seqlens is None or max_query_seqlen is None:
        raise UsageError(
            "Rows of queries need query_cu_seqlens and max_query_seqlen, got one of them; give both or neither."
        )
    impl = choose(impl, "ragged_linear", q, _unsupported_reason(q, k, v))
    rows = (query_cu_seqlens, cu_seqlens, max_query_seqlen, max_seqlen)
    with without_autocast(q):
        compute = operator.ragged_linear if impl == "triton" else reference.ragged_linear
        return compute(q, k, v, *rows, feature == "elu", eps)


def kernel_fits(q: Float[Tensor, "n h r"], k: Float[Tensor, "t h r"], v: Float[Tensor, "t h e"]) -> bool:
    """Whether `impl="auto"` takes the Triton kernel."""
    return choose("auto", "ragged_linear", q, _unsupported_reason(q, k, v)) == "triton"


def _unsupported_reason(q: Float[Tensor, "n h r"], k: Float[Tensor, "t h r"], v: Float[Tensor, "t h e"]) -> str:
    """What keeps the kernel from these tensors, if anything."""
    r, e = q.shape[-1], v.shape[-1]
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes q, k and v all in float32 or all in bfloat16, got {q.dtype}, {k.dtype} and {v.dtype}"
    if r % 16 or e % 16 or not 0 < r <= WIDEST or not 0 < e <= WIDEST:
        return f"widths must be multiples of 16 up to {WIDEST}, got {r} for queries and keys and {e} for values"
    return lack_of_room(q, WIDE_BYTES) if max(r, e) > WIDE else ""
