"""Sums over buckets as torch operators, and how their Triton programs are launched."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.kernels.launch import ceil, next_power_of_2
from longspan.kernels.operator import Maybe, differentiate, operator

PROGRAMS = 1024  # about as many as the largest GPUs hold at once
SHORTEST = 512  # positions of a part: shorter ones cost more to start than to walk
TOGETHER = 4  # hashes that are sorted at once
# Tokens of a step and warps, by bytes per element and whether a width is above 64: larger steps spill registers.
TILES = {(2, False): (64, 4), (2, True): (32, 8), (4, False): (16, 8), (4, True): (16, 16)}
STEP = TILES[2, False][0]  # the step for which FLOPs are counted


def _flops(q: tuple[int, ...] | None, v: tuple[int, ...], of_q: tuple[int, ...], *, products: int, plain: int) -> int:
    """For every query and key in every hash: two products with the tokens of a step and two with the carried sums for
    each sum of products, and one product with the tokens of a step for each plain sum."""
    c, e = 0 if q is None else q[3], v[3]
    each = plain * STEP * e + (0 if q is None else products * (STEP * (c + e) + 2 * c * e))
    return 2 * math.prod(v[:2]) * (of_q[2] + v[2]) * of_q[3] * each


@operator(
    "bucket_sums",
    fake=lambda q, k, v, of_q, of_k, slope, causal: v.new_empty(
        *v.shape[:2], of_q.shape[2], v.shape[3], dtype=torch.float32
    ),
    flops=lambda q, k, v, of_q, of_k, slope, causal: _flops(q, v, of_q, products=0, plain=1),
)
def forward(q: Maybe, k: Maybe, v: Tensor, of_q: Tensor, of_k: Tensor, slope: float, causal: bool) -> Tensor:
    """u."""
    v = v.contiguous()
    u = v.new_empty(*v.shape[:2], of_q.shape[2], v.shape[3], dtype=torch.float32)
    for walk in _walks(of_q, of_k, causal):
        walk.add(None, v, None, None, u, backward=False)
    return u


def _gradients(du: Tensor, q: Maybe, k: Maybe, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(  # pyright: ignore[reportReturnType]
        v.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)
    )


@operator(
    "bucket_sums_backward",
    fake=_gradients,
    flops=lambda du, q, k, v, of_q, of_k, slope, causal: _flops(q, v, of_q, products=2, plain=1),
)
def backward(
    du: Tensor, q: Maybe, k: Maybe, v: Tensor, of_q: Tensor, of_k: Tensor, slope: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv; the first two are empty without q and k.

    The gradient of a sum that is nearly 0, where only the direction matters, is beyond the range of float16.
    """
    kind = torch.float32 if v.dtype is torch.float16 else v.dtype
    du, values = (x.to(kind).contiguous() for x in (du, v))
    dv = torch.empty_like(values, dtype=torch.float32)
    if q is None or k is None:
        for walk in _walks(of_q, of_k, causal):
            walk.add(None, du, None, None, dv, backward=True)
        return v.new_empty(0), v.new_empty(0), dv.to(v.dtype)
    queries, keys = (x.to(kind).contiguous() for x in (q, k))
    dq, dk = (torch.empty_like(x, dtype=torch.float32) for x in (queries, keys))
    for walk in _walks(of_q, of_k, causal):
        walk.add(du, values, keys, dq, None, backward=False)
        walk.add(values, du, queries, dk, dv, backward=True)
    return dq.mul_(slope).to(q.dtype), dk.mul_(slope).to(k.dtype), dv.to(v.dtype)


differentiate(forward, backward)


@dataclass
class _Walk:
    """One hash: its index among those sorted together, and their items and codes in sorted order [b h hashes items]."""

    order: Tensor
    codes: Tensor
    turn: int
    first: bool
    keys: int
    causal: bool

    def add(self, a: Maybe, b: Tensor, v: Maybe, y: Maybe, z: Maybe, *, backward: bool) -> None:
        """Add sums of (a . b) v to y, if there is one, and sums of b to z, if there is one."""
        from longspan.kernels.bucket_sums import triton

        pairs, hashes, items = math.prod(b.shape[:2]), *self.order.shape[2:]
        values, receivers = b if v is None else v, items - b.shape[2]
        r, e = b.shape[3], values.shape[3]
        T, warps = TILES[b.element_size(), max(r, e) > 64]
        share = ceil(ceil(items, min(ceil(PROGRAMS, pairs), ceil(items, SHORTEST))), T) * T
        parts = ceil(items, share)
        matrices = b.new_empty((pairs, parts, r, e) if y is not None else 0, dtype=torch.float32)
        vectors = b.new_empty((pairs, parts, r) if z is not None else 0, dtype=torch.float32)
        sizes = {"r": r, "e": e, "R": next_power_of_2(r), "E": next_power_of_2(e), "T": T}
        sizes |= {"num_warps": warps, "num_stages": 1}
        kind = {"CAUSAL": self.causal, "BACKWARD": backward, "PRODUCTS": y is not None, "PLAIN": z is not None}
        place = {"items": items, "m": self.keys, "givers": b.shape[2], "share": share, "hashes": hashes}
        with torch.cuda.device_of(b):  # Triton launches on the current device
            if parts > 1:
                triton.ends[(pairs, parts)](
                    b, values, self.order, self.codes, matrices, vectors, turn=self.turn, **place, **sizes, **kind
                )
            triton.sums[(pairs, parts)](
                b if a is None else a, b, values, self.order, self.codes, matrices, vectors,
                matrices if y is None else y, vectors if z is None else z,
                receivers=receivers, turn=self.turn, FIRST=self.first, **place, **sizes, **kind,
            )  # fmt: skip


def _walks(of_q: Tensor, of_k: Tensor, causal: bool) -> Iterator[_Walk]:
    """All hashes, a few of them sorted at a time."""
    for some in range(0, of_q.shape[3], TOGETHER):
        of_query, of_key = (code[..., some : some + TOGETHER].mT for code in (of_q, of_k))
        if causal:  # key 0, query 0, key 1, query 1...
            codes = torch.stack([of_key, of_query], dim=4).flatten(3)
        else:
            codes = torch.cat([of_key, of_query], dim=3)
        codes, order = codes.sort(dim=3, stable=True)
        order = order.to(torch.int32)
        for turn in range(codes.shape[2]):
            yield _Walk(order, codes, turn, some + turn == 0, of_key.shape[3], causal)
