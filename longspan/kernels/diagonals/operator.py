"""Attention over diagonals as a torch operator: one offset at a time in torch, or by a Triton program.

    lse_i = log sum_o exp(s_io)      p_io = exp(s_io - lse_i)      s_io = q_i . k_{i-o} / sqrt(c)
    delta_i = dy_i . y_i      ds_io = p_io (dy_i . v_{i-o} - delta_i)
    dq_i = sum_o ds_io k_{i-o} / sqrt(c)
    dk_j = sum_o ds_{j+o,o} q_{j+o} / sqrt(c)      dv_j = sum_o p_{j+o,o} dy_{j+o}

The scores are recomputed in the backward pass. lse is +inf where a query sees nothing, so that its p are 0.
"""

import functools
import math

import torch
from torch import Tensor

from longspan.kernels.diagonals.reference import span
from longspan.kernels.launch import as_bytes, ceil, empty_like, readable, strides
from longspan.kernels.operator import Maybe, differentiate, like, operator
from longspan.kernels.precision import at_least_single


def _single(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _pairs(q: tuple[int, ...], offsets: list[int]) -> int:
    return q[0] * q[1] * sum(q[2] - abs(o) for o in offsets)


@operator(
    "diagonals",
    fake=lambda q, k, v, *_: (empty_like(v, v.shape[3], v.dtype), q.new_empty(q.shape[:3], dtype=_single(q))),
    flops=lambda q, k, v, offsets, *_: _pairs(q, offsets) * 2 * (q[3] + v[3]),
)
def forward(
    q: Tensor, k: Tensor, v: Tensor, offsets: list[int], mask: Maybe, rows: Maybe, fast: bool
) -> tuple[Tensor, Tensor]:
    """y, and the log-sum-exp of each query [b h n]."""
    y, lse = empty_like(v, v.shape[3], v.dtype), q.new_empty(q.shape[:3], dtype=_single(q))
    if fast:
        from longspan.kernels.diagonals import triton

        q, k, v = map(readable, (q, k, v))
        (b, h, n, c), shape = q.shape, triton.launch(q, v)
        with torch.cuda.device_of(q):  # Triton launches on the current device
            triton.forward[(ceil(n, shape["T"]), b * h)](
                q, k, v, y, lse, *_beside(q, offsets, mask, rows), n, h, c**-0.5, *strides(q, k, v, y), **shape,
                MASKED=mask is not None, ROWS=rows is not None,
            )  # fmt: skip
        return y, lse
    scores = torch.full((*q.shape[:3], len(offsets)), -torch.inf, dtype=lse.dtype, device=q.device)
    for place, o in enumerate(offsets):
        i, _ = span(o, q.shape[2])
        scores[:, :, i, place] = _scores(q, k, o, mask, rows)
    lse = scores.logsumexp(dim=-1)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    sums = torch.zeros_like(y, dtype=lse.dtype)
    for place, o in enumerate(offsets):
        i, j = span(o, q.shape[2])
        sums[:, :, i] += (scores[:, :, i, place] - lse[:, :, i]).exp()[..., None] * v[:, :, j]
    return y.copy_(sums), lse


@operator(
    "diagonals_backward",
    fake=lambda dy, y, lse, q, k, v, *_: like(q, k, v),
    flops=lambda dy, y, lse, q, k, v, offsets, *_: _pairs(q, offsets) * 2 * (3 * q[3] + 2 * v[3]),
)
def backward(
    dy: Tensor,
    y: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: list[int],
    mask: Maybe,
    rows: Maybe,
    fast: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    (dq, dk, dv), scale = like(q, k, v), q.shape[3] ** -0.5
    delta = (at_least_single(dy) * at_least_single(y)).sum(dim=-1)
    if fast:
        from longspan.kernels.diagonals import triton

        dy, q, k, v = map(readable, (dy, q, k, v))
        (b, h, n, _), shape = q.shape, triton.launch(q, v)
        with torch.cuda.device_of(q):
            triton.backward[(ceil(n, shape["T"]), b * h)](
                dy, delta, lse, q, k, v, dq, dk, dv, *_beside(q, offsets, mask, rows), n, h, scale,
                *strides(dy, q, k, v, dq, dk, dv), **shape, MASKED=mask is not None, ROWS=rows is not None,
            )  # fmt: skip
        return dq, dk, dv
    q_sums, k_sums, v_sums = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
    for o in offsets:
        i, j = span(o, q.shape[2])
        p = (_scores(q, k, o, mask, rows) - lse[:, :, i]).exp()
        ds = p * ((at_least_single(dy[:, :, i]) * v[:, :, j]).sum(dim=-1) - delta[:, :, i]) * scale
        q_sums[:, :, i] += ds[..., None] * k[:, :, j]
        k_sums[:, :, j] += ds[..., None] * q[:, :, i]
        v_sums[:, :, j] += p[..., None] * dy[:, :, i]
    return dq.copy_(q_sums), dk.copy_(k_sums), dv.copy_(v_sums)


differentiate(forward, backward)


def _scores(q: Tensor, k: Tensor, o: int, mask: Maybe, rows: Maybe) -> Tensor:
    """The scores of one diagonal, -inf where the key is not seen."""
    i, j = span(o, q.shape[2])
    scores = (at_least_single(q[:, :, i]) * k[:, :, j]).sum(dim=-1) * q.shape[3] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, j], -math.inf)
    return scores if rows is None else scores.masked_fill((rows[:, i] != rows[:, j])[:, None], -math.inf)


def _beside(q: Tensor, offsets: list[int], mask: Maybe, rows: Maybe) -> tuple[Tensor, int, Tensor, Tensor]:
    """The offsets and their number, the mask as bytes, and the rows; a dummy tensor where there are none."""
    listed, hidden = _on_device(tuple(offsets), q.device), as_bytes(mask)
    apart = listed if rows is None else rows.int().contiguous()
    return listed, len(offsets), listed if hidden is None else hidden, apart


@functools.lru_cache(maxsize=64)  # also because a CUDA graph may not copy from the host
def _on_device(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(offsets, dtype=torch.int32, device=device)
