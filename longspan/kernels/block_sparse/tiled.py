"""Block-sparse attention tile by tile in Triton: nothing is copied but columns, nothing skipped is computed.

Neighbours of any size, or lists of blocks of a multiple of 64; see `plan.py` for what a kernel is told, and `triton.py`
for what it does. With a `pattern` the plan is kept, and then nothing but the kernel itself runs.
"""

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.block_sparse import operator
from longspan.kernels.block_sparse.kept import remembered
from longspan.kernels.block_sparse.plan import CHUNK, Around, Lists, Plan, make_plan
from longspan.kernels.dispatch import choose, lack_of_room
from longspan.kernels.fused import is_counted
from longspan.kernels.precision import without_autocast

LEAST = 128  # tokens: less than a tile of queries is no work worth waiting for a compiler
WIDEST = 128
WIDE, WIDE_BYTES = 64, 160 * 1024  # above this width programs need more memory on chip than small GPUs have


def is_faster(
    q: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Lists | Callable[[], Lists] | Around,
    block: int,
    dropout: float,
) -> bool:
    """Whether this is the quicker path here; not for who counts operations, as he cannot see what a plan skips."""
    if q.shape[2] < LEAST or is_counted():
        return False
    return choose("auto", "block_sparse", q, unsupported_reason(q, v, lists, block, dropout)) == "triton"


def unsupported_reason(
    q: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Lists | Callable[[], Lists] | Around,
    block: int,
    dropout: float,
) -> str:
    """What keeps the kernel from these tensors, if anything."""
    c, e = q.shape[3], v.shape[3]
    half = q.dtype in (torch.bfloat16, torch.float16) or (q.dtype == torch.float32 and q.device.type == "cpu")
    if q.dtype != v.dtype or not half:
        return f"it takes q, k and v all in one half precision (float32 on a CPU), got {q.dtype} and {v.dtype}"
    if not isinstance(lists, tuple) and block % CHUNK:
        return f"lists must be of blocks of a multiple of {CHUNK} tokens, got block={block}"
    if dropout:
        return "it drops no weights"
    if max(c, e) > WIDEST or not (q.numel() and v.numel()):
        return f"it takes tokens of 1 to {WIDEST} channels, got {tuple(q.shape)} and {tuple(v.shape)}"
    return lack_of_room(q, WIDE_BYTES) if max(c, e) > WIDE else ""


def block_sparse(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    lists: Callable[[], Lists] | Around,
    *,
    block: int,
    reach: int | None = None,
    causal: bool = False,
    columns: Int[Tensor, "_b _h t"] | None = None,
    key_mask: Bool[Tensor, "b n"] | None = None,
    pattern: Hashable | None = None,
) -> Float[Tensor, "b h n e"]:
    n, device = q.shape[2], q.device
    before, after = lists if isinstance(lists, tuple) else (0, 0)

    def make() -> Plan:
        named = lists if isinstance(lists, tuple) else lists()
        how = {"block": block, "reach": reach, "causal": causal, "columns": columns, "key_mask": key_mask}
        return make_plan(n, named, **how, device=device)

    if key_mask is None and pattern is not None:
        plan = remembered(pattern, ("tiled", block, before, after, reach, causal, *q.shape[:3], device), make)
    else:
        plan = make()
    far = n if reach is None or reach > n else reach
    with without_autocast(q):
        return operator.forward(q, k, v, *plan, block, before, after, far, causal)[0]
