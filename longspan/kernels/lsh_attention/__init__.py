"""Exact attention among the tokens of one bucket, over several rounds that put the tokens into buckets differently.

    y_i = sum_r sum_{j in V_r(i)} exp(q_i . k_j) v_j / sum_r sum_{j in V_r(i)} exp(q_i . k_j)

    lsh_attention   V_r(i): the tokens of i's bucket from `left` places before i to `right` after it, counted among
               the tokens of that bucket alone; one vector z is both query and key, k_j = scale z_j / |z_j|
    chunked    V_r(i): with all tokens sorted by bucket and cut into chunks, i's chunk, `before` chunks on its left and
               `after` on its right, in a ring through all rounds, whatever the buckets of their tokens

A token sees itself only where it sees nothing else in any round: then y_i = v_i. A key met in several rounds counts as
often. Both sort the tokens by bucket, so that what a query sees lies close by, attend block by block, and sort back;
time and memory are linear in the length but for the sort. `reference.py` is the reference; `triton` computes it on a
GPU without writing any scores or sorted tokens, and gives the same bits in every run.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.lsh_attention import operator, reference
from longspan.kernels.lsh_attention.reference import keys
from longspan.kernels.precision import at_least_single

__all__ = ["chunked", "keys", "lsh_attention"]

TILE = 16  # queries per block at least, however narrow the window
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
    """Attention within a window of places in the own bucket; `buckets` are numbers from 0 on, quicker to sort if small.

    Where `auto` finds no kernel, tokens are attended in blocks, never by the law.
    """
    if impl == "reference":
        return reference.lsh_attention(z, v, buckets, left=left, right=right, scale=scale)
    bucket, order = buckets.sort(dim=-1, stable=True)
    n = z.shape[2]
    # by comparing: min() would stay a formula in a graph compiled for any length
    left, right = (side if side < n else n - 1 for side in (left, right))
    if choose(impl, "lsh_attention", v, _unsupported_reason(z, v, dropout)) == "triton":
        return operator.forward(z.to(v.dtype), v, order, bucket, left, right, scale)[0]
    block = max(TILE, -(-(left + right) // 2))
    block = block if block < n else n
    before, after = -(-left // block), -(-right // block)
    bucket = _in_blocks(bucket, block, fill=-1)
    lag = _places(-before, 1 + after, block, z.device) - torch.arange(block, device=z.device)[:, None]
    near = (lag >= -left) & (lag <= right) & (lag != 0)
    first = torch.arange(bucket.shape[3], device=z.device)[:, None] * block
    there = first + _places(-before, 1 + after, block, z.device)
    inside = (there >= 0) & (there < n)  # the neighbours of the first and last block are not those round the end
    visible = (bucket[..., :, None] == _around(bucket, before, after)[..., None, :]) & near & inside[:, None]
    return _attend(z.to(v.dtype), keys(z, scale).to(v.dtype), v, visible, order, before, after, dropout)


def chunked(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    buckets: Int[Tensor, "b h r n"],
    *,
    chunk: int,
    before: int,
    after: int,
    causal: bool = False,
    key_mask: Bool[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Literal["auto", "reference"] = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention within neighbouring chunks of the tokens sorted by bucket."""
    if impl == "reference":
        return reference.chunked(
            q, k, v, buckets, chunk=chunk, before=before, after=after, causal=causal, key_mask=key_mask
        )
    order = buckets.argsort(dim=-1, stable=True)
    real = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    real = real[:, None, None].expand_as(order).gather(-1, order)
    place, real = (
        rearrange(_in_blocks(u, chunk, fill=0), "b h r g s -> b h 1 (r g) s") for u in (order, real.to(order.dtype))
    )
    here, there = place[..., :, None], _around(place, before, after)[..., None, :]
    visible = (_around(real, before, after)[..., None, :] > 0) & (here != there)
    visible = visible & (there < here) if causal else visible
    return _attend(q, k, v, visible, order, before, after, dropout)


def _attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    visible: Bool[Tensor, "b h r_or_1 g s span"],
    order: Int[Tensor, "b h r n"],
    before: int,
    after: int,
    dropout: float,
) -> Float[Tensor, "b h n e"]:
    """`visible` speaks of sorted tokens in blocks; its third axis is 1 where blocks see across rounds."""
    (rounds, n), (ring, _, block, _) = order.shape[2:], visible.shape[2:]
    rows, back = _sorted_rows(q, k, v, order)
    rows = _in_blocks(rows, block, fill=0)
    rows = rearrange(rows, "b h (ring r) g s c -> b h ring (r g) s c", ring=ring)
    q, k, own = rows.split([q.shape[-1], k.shape[-1], v.shape[-1]], dim=-1)
    k, own = _around(k, before, after), _around(own, before, after)

    scores = at_least_single(q @ k.mT).masked_fill(~visible, -torch.inf)
    lowest = torch.finfo(scores.dtype).min / 4  # the largest logit where nothing is seen
    largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=lowest)
    weights = (scores - largest).exp()
    total = torch.cat([weights.sum(dim=-1, keepdim=True), largest], dim=-1)
    y = (F.dropout(weights, dropout) if dropout else weights).to(own.dtype) @ own

    y, total = (
        _permute(rearrange(u, "b h ring (r g) s c -> b h (ring r) (g s) c", r=rounds // ring)[:, :, :, :n], *back)
        for u in (y, total)
    )
    total, largest = total[..., :1], total[..., 1:].detach()
    share = (largest - largest.amax(dim=2, keepdim=True)).exp()
    return _weighed((share * y).sum(dim=2), (share * total).sum(dim=2), v)


def _unsupported_reason(z: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], dropout: float) -> str:
    """What keeps the Triton kernel from these tensors, if anything."""
    if dropout:
        return f"it has no dropout, got dropout={dropout}"
    if v.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes float32 or half precision, got {v.dtype}"
    if max(z.shape[3], v.shape[3]) > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {z.shape[3]} and {v.shape[3]}"
    return "" if v.numel() else "there are no tokens"


def _sorted_rows(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], order: Int[Tensor, "b h r n"]
) -> tuple[Float[Tensor, "b h r n channels"], tuple[Tensor, Tensor]]:
    """Queries, keys and values side by side, in the order of each round; and what sorts them back."""
    index = torch.arange(order.shape[3], device=order.device).expand_as(order)
    inverse = torch.zeros_like(order).scatter(-1, order, index)
    rows = torch.cat([q, k, v], dim=-1)[:, :, None].expand(-1, -1, order.shape[2], -1, -1)
    return _permute(rows, order, inverse), (inverse, order)


def _weighed(
    y: Float[Tensor, "b h n e"], total: Float[Tensor, "b h n 1"], v: Float[Tensor, "b h n e"]
) -> Float[Tensor, "b h n e"]:
    """The mean of what was seen, and the own value where that is nothing."""
    alone = total == 0
    return torch.where(alone, v, (y / torch.where(alone, 1, total)).to(v.dtype))


def _in_blocks(x: Shaped[Tensor, "b h r n *c"], block: int, fill: int) -> Shaped[Tensor, "b h r g s *c"]:
    missing = -x.shape[3] % block
    x = F.pad(x, (0, 0) * (x.ndim - 4) + (0, missing), value=fill) if missing else x  # else it would only copy
    return x.unflatten(3, (-1, block))


def _around(x: Shaped[Tensor, "b h r g s *c"], before: int, after: int) -> Shaped[Tensor, "b h r g span *c"]:
    """Each block with its neighbours in the order of places, round the end."""
    return torch.cat([x.roll(-step, dims=3) for step in range(-before, after + 1)], dim=4)


def _places(first: int, last: int, block: int, device: torch.device) -> Int[Tensor, " span"]:
    return torch.arange(first * block, last * block, device=device)


def _permute(
    x: Float[Tensor, "b h r n c"], order: Int[Tensor, "b h r n"], inverse: Int[Tensor, "b h r n"]
) -> Float[Tensor, "b h r n c"]:
    """The tokens in this order."""
    return _Permutation.apply(x, order, inverse)  # pyright: ignore[reportReturnType]


class _Permutation(torch.autograd.Function):
    """A gather whose gradient is a gather too: torch would scatter and add, not knowing that no index comes twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x.gather(3, order[..., None].expand_as(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _permute(gradients[0], inverse, order), None, None
