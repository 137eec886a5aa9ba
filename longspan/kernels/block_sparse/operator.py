"""The Triton kernels as one operator of torch with its gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `triton.py` and `Plan` say them.
"""

import torch
from torch import Tensor

from longspan.kernels.block_sparse.plan import CHUNK, Plan
from longspan.kernels.launch import ceil, empty_like, readable


@torch.library.custom_op("longspan::block_sparse", mutates_args=())
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Tensor | None,
    latest: Tensor | None,
    tiles: Tensor | None,
    counts: Tensor | None,
    seers: Tensor | None,
    starts: Tensor | None,
    columns: Tensor | None,
    columns_latest: Tensor | None,
    until: Tensor | None,
    block: int,
    before: int,
    after: int,
    reach: int,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """y, and for the way back the logarithms of the sums of weights, whole chunks of them."""
    from longspan.kernels.block_sparse import triton

    plan = Plan(places, latest, tiles, counts, seers, starts, columns, columns_latest, until)
    q, k, v = map(readable, (q, k, v))
    y, z = empty_like(q, v.shape[3], v.dtype), _sums(q)
    with torch.cuda.device_of(q):  # Triton launches on the current device
        triton.forth(q, k, v, _singles(k, v, columns), plan, (block, before, after, reach, causal), y, z)
    return y, z


@forward.register_fake
def _(q, k, v, *rest):
    return empty_like(q, v.shape[3], v.dtype), _sums(q)


@torch.library.custom_op("longspan::block_sparse_backward", mutates_args=())
def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    z: Tensor,
    places: Tensor | None,
    latest: Tensor | None,
    tiles: Tensor | None,
    counts: Tensor | None,
    seers: Tensor | None,
    starts: Tensor | None,
    columns: Tensor | None,
    columns_latest: Tensor | None,
    until: Tensor | None,
    block: int,
    before: int,
    after: int,
    reach: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    from longspan.kernels.block_sparse import triton

    plan = Plan(places, latest, tiles, counts, seers, starts, columns, columns_latest, until)
    dy, q, k, v, y = map(readable, (dy, q, k, v, y))
    singles, rules, z = _singles(k, v, columns), (block, before, after, reach, causal), z.contiguous()
    dq, dk, dv = (empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))
    through = torch.empty_like(z)
    with torch.cuda.device_of(q):
        triton.back_to_queries(dy, q, k, v, singles, plan, rules, y, z, through, dq)
        triton.back_to_keys(dy, q, k, v, singles, plan, rules, z, through, dk, dv)
    return dq, dk, dv


@backward.register_fake
def _(dy, q, k, v, *rest):
    return tuple(empty_like(x, x.shape[3], x.dtype) for x in (q, k, v))


def _sums(q: Tensor) -> Tensor:
    b, h, n, _ = q.shape
    return q.new_empty(b, h, ceil(n, CHUNK) * CHUNK, dtype=torch.float32)


def _singles(k: Tensor, v: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The keys and values at these places, any where there is none."""
    if columns is None:
        return None
    b, h, n, _ = k.shape
    places = columns.clamp(max=n - 1).long().expand(b, h, -1)[..., None]
    k_single, v_single = (x.gather(2, places.expand(-1, -1, -1, x.shape[3])) for x in (k, v))
    return k_single, v_single


def _remember(ctx, inputs, output) -> None:
    q, k, v, *plan = inputs[:12]
    ctx.save_for_backward(q, k, v, *output, *plan)
    ctx.rules = inputs[12:]
    ctx.set_materialize_grads(False)  # nobody differentiates the logarithms


def _gradients(ctx, dy, _):
    return (*backward(dy, *ctx.saved_tensors, *ctx.rules), *[None] * 14)


forward.register_autograd(_gradients, setup_context=_remember)
