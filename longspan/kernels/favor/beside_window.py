"""Exact weights inside a sliding window, random features outside of it, one normaliser, from existing kernels.

    y_i = sum_j w_ij v_j / sum_j w_ij      w_ij = exp(q_i . k_j / sqrt(c)) for i - left <= j <= i + right, else
                                           w_ij = phi(q_i) . phi(k_j) / r

Keys before the window are handled by causal `favor` over keys shifted by `left` + 1 tokens, keys after it likewise in
reversed order; the window itself is block-sparse attention. Each part gives its own mean of values and the logarithm of
its sum of weights, with which the means are combined. The final weights are those of a part with the normaliser of the
whole, so the backward pass of a part is that of its kernel, given y and the normaliser of the whole. Neither weights
nor features are stored. `corrected.py` defines the answer.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels import block_sparse
from longspan.kernels.block_sparse import operator as window
from longspan.kernels.dispatch import choose
from longspan.kernels.favor import operator as features
from longspan.kernels.favor import unsupported_reason
from longspan.kernels.precision import without_autocast

LEAST = 2.0**-80  # of the whole: a smaller part has no gradient


def is_faster(
    q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"], dropout: float
) -> bool:
    """Whether the Triton kernels take this call."""
    near = block_sparse.is_faster(q, v, (0, 0), 1, dropout)
    return near and choose("auto", "favor", q, unsupported_reason(q, k, v)) == "triton"


def window_beside_favor(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    projection: Float[Tensor, "r c"],
    *,
    left: int,
    right: int | None,
    key_mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b h n e"]:
    """Attention over the real keys; without `right` only up to i. Arbitrary for a query without a key in its window.

    Needs Triton, so a GPU or its interpreter.
    """
    with without_autocast(q):
        return _WindowBesideFavor.apply(q, k, v, projection, key_mask, left, right)  # type: ignore[return-value]


class _Far(NamedTuple):
    """The keys on one side of the windows, as causal attention by features takes them."""

    shift: int
    reversed: bool

    def turned(self, x: Tensor, dim: int = 2) -> Tensor:
        return x.flip(dim) if self.reversed else x

    def moved(self, x: Tensor) -> Tensor:
        """Keys or values [b h n c], or a mask [b n], shifted so that a query may see those up to its own place."""
        dim, edges = (1, (self.shift, 0)) if x.ndim == 2 else (2, (0, 0, self.shift, 0))
        return F.pad(self.turned(x, dim), edges).narrow(dim, 0, x.shape[dim])

    def back(self, x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        """Gradients of `moved`."""
        return self.turned(F.pad(x[:, :, self.shift :], (0, 0, 0, min(self.shift, x.shape[2]))))

    def inputs(self, q: Tensor, k: Tensor, v: Tensor, projection: Tensor, real: Tensor) -> tuple[Any, ...]:
        return self.turned(q).contiguous(), self.moved(k), self.moved(v), projection, self.moved(real), True

    def unit(self, maxima: Tensor, q: Tensor, projection: Tensor) -> Tensor:
        """The logarithm to base 2 of what the weights of a query are divided by."""
        norm = q.float().square().sum(dim=-1) * (math.log2(math.e) / q.shape[-1] ** 0.5 / 2)
        return self.turned(maxima[0] + maxima[1]) - norm - math.log2(len(projection))


def _sides(left: int, right: int | None) -> list[_Far]:
    return [_Far(left + 1, False), *([] if right is None else [_Far(right + 1, True)])]


class _WindowBesideFavor(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, projection: Tensor, key_mask: Tensor | None, left: int, right: Any
    ) -> Tensor:
        b, _, n, _ = q.shape
        real = q.new_ones(b, n, dtype=torch.bool) if key_mask is None else key_mask
        plan = block_sparse.planned(q, (left, right or 0), block=1, key_mask=key_mask, cache_key="sliding_window")
        near, lse = window.forward(q, k, v, None, *plan)
        means, logs, parts = [], [lse[:, :, :n]], []
        for far in _sides(left, right):
            y, d, maxima, *summaries = features.forward(*far.inputs(q, k, v, projection, real))
            means.append(far.turned(y))
            logs.append(far.turned(d).log2() + far.unit(maxima, q, projection))
            parts.append((d, maxima, *summaries))
        whole = torch.stack(logs)
        top = whole.amax(dim=0)
        lse = top + (whole - top).exp2().sum(dim=0).log2()
        shares = (whole - lse).exp2()
        y = shares[0, ..., None] * near
        for share, mean in zip(shares[1:], means, strict=True):
            y = y + share[..., None] * mean
        if y.dtype != v.dtype:  # else `.to` returns y itself, an alias to which torch.compile of 2.11 gives no gradient
            y = y.to(v.dtype)
        saved = []
        for far, (d, *others), share in zip(_sides(left, right), parts, shares[1:], strict=True):
            whole = d / far.turned(share).clamp(min=LEAST)  # the normaliser of the whole, in units of the part
            saved += [whole, *others]
        ctx.save_for_backward(q, k, v, projection, real, y, lse, *saved)
        ctx.plan, ctx.sides = plan, (left, right)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,), (q, k, v, projection, real, y, lse, *saved) = gradients, ctx.saved_tensors
        dy, n = dy.contiguous(), q.shape[2]
        filled = F.pad(lse, (0, -n % window.CHUNK))
        found = [part.float() for part in window.backward(dy, y, filled, q, k, v, None, *ctx.plan)[:3]]
        for far in _sides(*ctx.sides):
            part, saved = saved[:6], saved[6:]
            given = far.turned(dy).contiguous(), far.turned(y).contiguous(), *part
            dq, dk, dv = features.backward(*given, *far.inputs(q, k, v, projection, real))
            for place, part in enumerate((far.turned(dq), far.back(dk), far.back(dv))):
                found[place] = found[place] + part
        dq, dk, dv = (part.to(x.dtype) for part, x in zip(found, (q, k, v), strict=True))
        return dq, dk, dv, None, None, None, None
