"""Sums over the tokens that share a query's bucket, with torch operations.

    y_i = sum_s sum_{j : code_s(k_j) = code_s(q_i)} (a_i . b_j) v_j      when causal over j <= i

Without a and b their product is 1. For each hash queries and keys are sorted by code together, a key before the query
at its position, and cut into blocks. Pairs are formed only within a block. Matching tokens in other blocks can only
have the first code of the block, if before it, or its last, if after it: their products b v^T are summed along the
blocks. So buckets never mix, to the last bit. A few hashes at a time, so that memory does not grow with their number.
For short sequences all pairs are formed, which takes far less time.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from longspan.kernels.lsh_attention.blocks import in_slots
from longspan.kernels.operator import Maybe
from longspan.kernels.running_sum import before, rescaled_sum

BLOCK = 32  # tokens
PAIRS = 256**2  # up to this many, all are formed
ROOM = 2**21  # elements per head, of all hashes done at once
APART = 1e4  # between the exponents of successive codes: exp(-APART) is 0


class _BucketSums(torch.autograd.Function):
    """u, and the gradient that is defined for it."""

    @staticmethod
    def forward(
        ctx: Any, q: Maybe, k: Maybe, v: Tensor, of_q: Tensor, of_k: Tensor, slope: float, causal: bool
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, of_q, of_k)
        ctx.slope, ctx.causal = slope, causal
        return sums(None, None, v, of_q, of_k, causal=causal)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Maybe, ...]:
        (q, k, v, of_q, of_k), du, causal = ctx.saved_tensors, gradients[0], ctx.causal
        dq = dk = None
        if k is not None:
            dq = ctx.slope * sums(du, v, k, of_q, of_k, causal=causal)
        if causal:  # a key is seen by the queries after it: by those before it, if time is reversed
            v, du, of_q, of_k = (x.flip(2) for x in (v, du, of_q, of_k))
            q = None if q is None else q.flip(2)
        if q is not None:
            dk = ctx.slope * sums(v, du, q, of_k, of_q, causal=causal)
            dk = dk.flip(2) if causal else dk
        dv = sums(None, None, du, of_k, of_q, causal=causal)
        return dq, dk, dv.flip(2) if causal else dv, None, None, None, None


bucket_sums: Any = _BucketSums.apply


def sums(
    a: Float[Tensor, "b h n r"] | None,
    b: Float[Tensor, "b h m r"] | None,
    v: Float[Tensor, "b h m e"],
    query_codes: Int[Tensor, "b h n s"],
    key_codes: Int[Tensor, "b h m s"],
    *,
    causal: bool = False,
) -> Float[Tensor, "b h n e"]:
    """y as above, in the precision of v."""
    a = v.new_ones(*query_codes.shape[:3], 1) if a is None else a
    b = v.new_ones(*v.shape[:3], 1) if b is None else b
    if a.shape[2] * b.shape[2] <= PAIRS:
        return _over_pairs(a, b, v, query_codes, key_codes, causal)
    r, e = b.shape[3], v.shape[3]
    room = (a.shape[2] + v.shape[2]) * (BLOCK + 2 * r + e + r * e // BLOCK)
    y, together = v.new_zeros(*a.shape[:3], e), max(1, ROOM // max(room, 1))
    for some in zip(query_codes.split(together, dim=3), key_codes.split(together, dim=3), strict=True):
        of_query, of_key = (rearrange(code, "b h n s -> b (h s) n") for code in some)
        of_each = [repeat(x, "b h n c -> b (h s) n c", s=some[0].shape[3]) for x in (a, b, v)]
        found = _one_hash_each(of_each[0], of_each[1], of_each[2], of_query, of_key, causal)
        y = y + found.unflatten(1, (a.shape[1], -1)).sum(dim=2)
    return y


def agreements(query_codes: Int[Tensor, "b h n s"], key_codes: Int[Tensor, "b h m s"]) -> Int[Tensor, "b h n m"]:
    """In how many hashes each query and key have the same code."""
    count = query_codes.new_zeros(*query_codes.shape[:3], key_codes.shape[2], dtype=torch.long)
    for i, j in zip(query_codes.unbind(dim=3), key_codes.unbind(dim=3), strict=True):
        count += i[..., None] == j[:, :, None]
    return count


def _over_pairs(
    a: Float[Tensor, "b h n r"],
    b: Float[Tensor, "b h m r"],
    v: Float[Tensor, "b h m e"],
    query_codes: Int[Tensor, "b h n s"],
    key_codes: Int[Tensor, "b h m s"],
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    agree = agreements(query_codes, key_codes).to(v.dtype)
    agree = agree.tril() if causal else agree
    return (a @ b.mT * agree).masked_fill(agree == 0, 0) @ v


def _one_hash_each(
    a: Float[Tensor, "b h n r"],
    b: Float[Tensor, "b h m r"],
    v: Float[Tensor, "b h m e"],
    query_code: Int[Tensor, "b h n"],
    key_code: Int[Tensor, "b h m"],
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    n, m = a.shape[2], b.shape[2]
    if causal:  # key 0, query 0, key 1, query 1...
        code = torch.stack([key_code, query_code], dim=3).flatten(2)
    else:
        code = torch.cat([key_code, query_code], dim=2)
    code, order = code.sort(dim=2, stable=True)
    slot = torch.zeros_like(order).scatter(2, order, torch.arange(n + m, device=v.device).expand_as(order))
    of_key, of_query = (slot[..., ::2], slot[..., 1::2]) if causal else (slot[..., :m], slot[..., m:])
    blocks = -(-(n + m) // BLOCK)
    code = torch.cat([code, code[..., -1:].expand(-1, -1, blocks * BLOCK - n - m)], dim=2).unflatten(2, (-1, BLOCK))
    a, b, v = (in_slots(x, at, blocks, BLOCK) for x, at in ((a, of_query), (b, of_key), (v, of_key)))
    pairs = (a @ b.mT).masked_fill(code[..., :, None] != code[..., None, :], 0)
    y = (pairs.tril() if causal else pairs) @ v
    y = y + _from_before(a, b, v, code, takes=code[..., 0], gives=code[..., -1])
    if not causal:  # the blocks after a block are before it in reverse order
        a, b, v, code = (x.flip(2) for x in (a, b, v, code))
        y = y + _from_before(a, b, v, code, takes=code[..., -1], gives=code[..., 0]).flip(2)
    return y.flatten(2, 3).take_along_dim(of_query[..., None], dim=2)


def _from_before(
    a: Float[Tensor, "b h g t r"],
    b: Float[Tensor, "b h g t r"],
    v: Float[Tensor, "b h g t e"],
    code: Int[Tensor, "b h g t"],
    takes: Int[Tensor, "b h g"],
    gives: Int[Tensor, "b h g"],
) -> Float[Tensor, "b h g t e"]:
    """What queries get from the blocks before their own; each block gives sums of one code and takes those of one."""
    products = b.masked_fill((code != gives[..., None])[..., None], 0).mT @ v
    new = F.pad(gives[..., 1:] != gives[..., :-1], (1, 0))
    lse = APART * new.cumsum(dim=2)[..., None].to(v.dtype)
    sums = before(rescaled_sum(products.flatten(3)[:, :, :, None], lse))
    known = F.pad(gives[..., :-1] == takes[..., 1:], (1, 0))
    sums = sums.masked_fill(~known[..., None, None], 0).view(products.shape)
    return a.masked_fill((code != takes[..., None])[..., None], 0) @ sums
