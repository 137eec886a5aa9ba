"""LSH attention: exact attention among the tokens of one bucket, over several rounds that hash the tokens differently.

    y_i = sum_r sum_{j in V_r(i)} exp(z_i . k_j) v_j / sum_r sum_{j in V_r(i)} exp(z_i . k_j)      k_j = scale z_j/|z_j|

V_r(i) are the tokens of i's bucket in round r from `left` positions before i to `right` after it, counted only among
the tokens of that bucket. One vector z is both query and key. A token sees itself only where it sees nothing else in
any round: then y_i = v_i. A key seen in several rounds is counted each time.

Tokens are sorted by bucket, so that what a query sees lies close by, attend block by block, and are put back in order:
but for the sort, time and memory are linear in the length. `reference` defines the answer with a matrix; `triton`
stores neither scores nor sorted tokens, and is deterministic. `hash.py` makes the buckets.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.lsh_attention import operator, reference
from longspan.kernels.lsh_attention.reference import keys
from longspan.kernels.precision import at_least_single

__all__ = ["keys", "lsh_attention", "merge_rounds"]

SMALLEST_BLOCK = 16  # queries, however narrow the window
WIDEST = 128  # channels of a head that a program of the Triton kernel can hold


def lsh_attention(
    z: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    buckets: Int[Tensor, "b h r n"],
    *,
    left: int,
    right: int,
    scale: float = 1.0,
    dropout: float = 0.0,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention within a window of a token's bucket; `buckets` are integers from 0, which sort faster in a small type.

    Without the kernel `auto` attends in blocks of sorted tokens, never with the reference.
    """
    if impl == "reference":
        return reference.weights(z, buckets, left=left, right=right, scale=scale).to(v.dtype) @ v
    bucket, order = buckets.sort(dim=-1, stable=True)
    n = z.shape[2]
    # by comparing: min() would stay symbolic in a graph compiled for any length
    left, right = (side if side < n else n - 1 for side in (left, right))
    if choose(impl, "lsh_attention", v, _unsupported_reason(z, v, dropout)) == "triton":
        return operator.forward(z.to(v.dtype), v, order, bucket, left, right, scale)[0]
    return _in_blocks(z, v, bucket, order, left, right, scale, dropout)


def _unsupported_reason(z: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], dropout: float) -> str:
    if dropout:
        return f"it has no dropout, got dropout={dropout}"
    if v.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes float32 or half precision, got {v.dtype}"
    if max(z.shape[3], v.shape[3]) > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {z.shape[3]} and {v.shape[3]}"
    return "" if v.numel() else "there are no tokens"


def _in_blocks(
    z: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    bucket: Int[Tensor, "b h r n"],
    order: Int[Tensor, "b h r n"],
    left: int,
    right: int,
    scale: float,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    """Each block of sorted queries against its own and the neighbouring blocks of keys."""
    n = z.shape[2]
    block = max(SMALLEST_BLOCK, -(-(left + right) // 2))
    block = block if block < n else n
    before, after = -(-left // block), -(-right // block)
    bucket = _blocks(bucket, block, fill=-1)
    span = torch.arange(-before * block, (1 + after) * block, device=z.device)
    lag = span - torch.arange(block, device=z.device)[:, None]
    near = (lag >= -left) & (lag <= right) & (lag != 0)
    position = torch.arange(bucket.shape[3], device=z.device)[:, None] * block + span
    inside = (position >= 0) & (position < n)  # `_neighbours` wraps around
    visible = (bucket[..., :, None] == _neighbours(bucket, before, after)[..., None, :]) & near & inside[:, None]

    index = torch.arange(n, device=z.device).expand_as(order)
    inverse = torch.zeros_like(order).scatter(-1, order, index)
    rows = torch.cat([z.to(v.dtype), keys(z, scale).to(v.dtype), v], dim=-1)
    rows = _permute(rows[:, :, None].expand(-1, -1, order.shape[2], -1, -1), order, inverse)
    q, k, values = _blocks(rows, block, fill=0).split([z.shape[3], z.shape[3], v.shape[3]], dim=-1)
    k, values = _neighbours(k, before, after), _neighbours(values, before, after)

    scores = at_least_single(q @ k.mT).masked_fill(~visible, -torch.inf)
    lowest = torch.finfo(scores.dtype).min / 4  # the largest logit where nothing is seen
    largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=lowest)
    weights = (scores - largest).exp()
    total = torch.cat([weights.sum(dim=-1, keepdim=True), largest], dim=-1)
    y = (F.dropout(weights, dropout) if dropout else weights).to(v.dtype) @ values

    y, total = (_permute(u.flatten(3, 4)[:, :, :, :n], inverse, order) for u in (y, total))
    return merge_rounds(y, total[..., :1], total[..., 1:].detach(), v)


def merge_rounds(
    y: Float[Tensor, "b h r n e"],
    total: Float[Tensor, "b h r n 1"],
    largest: Float[Tensor, "b h r n 1"],
    v: Float[Tensor, "b h n e"],
) -> Float[Tensor, "b h n e"]:
    """sum_r y_r / sum_r total_r, which come divided by exp(largest_r); v where no round has seen anything."""
    share = (largest - largest.amax(dim=2, keepdim=True)).exp()
    y, total = (share * y).sum(dim=2), (share * total).sum(dim=2)
    alone = total == 0
    return torch.where(alone, v, (y / torch.where(alone, 1, total)).to(v.dtype))


def _blocks(x: Shaped[Tensor, "b h r n *c"], block: int, fill: int) -> Shaped[Tensor, "b h r g s *c"]:
    missing = -x.shape[3] % block
    x = F.pad(x, (0, 0) * (x.ndim - 4) + (0, missing), value=fill) if missing else x  # else it would only copy
    return x.unflatten(3, (-1, block))


def _neighbours(x: Shaped[Tensor, "b h r g s *c"], before: int, after: int) -> Shaped[Tensor, "b h r g span *c"]:
    """Each block with those around it, in order, wrapping around at the ends."""
    return torch.cat([x.roll(-step, dims=3) for step in range(-before, after + 1)], dim=4)


class _Permutation(torch.autograd.Function):
    """A gather whose gradient is a gather too: torch would scatter-add, not knowing that indices are unique."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x.gather(3, order[..., None].expand_as(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _permute(gradients[0], inverse, order), None, None


_permute: Any = _Permutation.apply  # x [b h r n c], order, inverse [b h r n]
