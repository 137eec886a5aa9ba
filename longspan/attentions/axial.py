"""Axial attention: tokens laid out as a grid, and ordinary attention along one axis of it at a time.

    A_a(u)_i = sum_{j in line_a(i)} p_ij v_j      p_i = softmax_{j in line_a(i)}(q_i . k_j / sqrt(c))

line_a(i) are the real tokens that differ from i only in their position along axis a; q, k and v are projections of u,
and an output projection follows. With F_a for all of that,

    combine = "sum"      y = F_0(x) + F_1(x) + ...              what each token sees is a cross
    combine = "chain"    y = ... F_1(F_0(x))                    what it sees is the whole grid
    combine = "outer"    y = F_1(x) + down(F_0(F_1'(x)))        causal on two axes; F_1' sees whole rows

Causally, line_a(i) ends at i. Then "sum" and "chain" never reach a token of an earlier row that lies further to the
right, however many layers there are; "outer", the paper's inner and outer decoder in one layer, reaches every earlier
token: `down` shifts all rows down by one, so that what was computed from a whole row is read only by the rows below it.
`shape` is the grid, the last axis running fastest, as in (32, 32) or (8, 8, 3); without it the grid has round(sqrt(L))
columns and enough rows for L tokens, where L is the backbone's `max_length`, so square images get their own shape. A
layer given neither is refused, and so are inputs with more tokens than the grid holds. A square grid has n sqrt(n)
pairs per axis. Paper: arXiv:1912.12180. Departs from the paper in: one set of projections for all axes unless
`projections` = "own" (a set for each makes an encoder block a third larger for every further axis, against the rule
that compared models have the same size; "shared" has the parameters of softmax attention), and no positions of its own.
There is no cross form: two sequences share no axis.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import SELF_PATTERNS, Attention, AttentionMeta, Pattern
from longspan.attentions.states import DecodeState
from longspan.core.errors import UsageError
from longspan.kernels.cache import append
from longspan.kernels.masked import attend_once, masked_attention
from longspan.kernels.packing import left_align
from longspan.kernels.precision import as_operand

Line = Literal["whole", "so far"]


@dataclass
class Lines(DecodeState):
    """The keys and values of every axis so far, left-aligned: axes side by side as if they were heads."""

    k: Float[Tensor, "b ah t c"]
    v: Float[Tensor, "b ah t c"]
    lengths: Int[Tensor, " b"]


class Axial(Attention):
    meta = AttentionMeta(
        title="Axial",
        paper="arXiv:1912.12180",
        family="sparse",
        cost="n sqrt n",
        patterns=SELF_PATTERNS,
        length_bound=True,
        places="positions",
        dropout="weights",
        remark="The grid follows from the greatest length unless a shape is given; the package has no causal form.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        shape: tuple | None = None,
        combine: Literal["sum", "chain", "outer"] = "sum",
        projections: Literal["shared", "own"] = "shared",
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        self.shape, self.combine = self._grid(shape), combine
        if combine == "outer" and not (self.pattern.causal and len(self.shape) == 2):
            raise UsageError(
                "axial combines 'outer' rows only as causal_self on a grid of two axes, got "
                f"{self.pattern} and {len(self.shape)}; choose 'sum' or 'chain'."
            )
        sets = len(self.shape) if projections == "own" else 1
        self.axes = nn.ModuleList(Projections(dim, self.inner, bias) for _ in range(sets))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        self._check_room(x.shape[1], math.prod(self.shape), f"tokens, a grid of {'x'.join(map(str, self.shape))}")
        line: Line = "so far" if self.pattern.causal else "whole"
        if self.combine == "outer":
            rows = self._along(0, self._along(1, x, mask, "whole"), mask, line)
            rows = rows if mask is None else rows.masked_fill(~mask[..., None], 0)
            columns, n = self.shape[1], x.shape[1]
            return self._along(1, x, mask, line) + F.pad(rows, (0, 0, columns, 0))[:, :n]  # `down`
        if self.combine == "chain":
            for axis in range(len(self.shape)):
                x = self._along(axis, x, mask, line)
            return x
        return reduce(torch.add, (self._along(axis, x, mask, line) for axis in range(len(self.shape))))

    def projections(self) -> Iterator[nn.Linear]:
        return (module for module in self.modules() if isinstance(module, nn.Linear))

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *more: Any) -> DecodeState:
        if self.combine == "outer":  # reads whole rows once they are complete, so each step runs the history again
            return super()._state_after(x, mask, *more)
        x, lengths = left_align(x, mask)
        k, v, u = [], [], x
        for axis in range(len(self.shape)):
            maps = self._maps(axis)
            k.append(self._split(maps.key(u)))
            v.append(self._split(maps.value(u)))
            if self.combine == "chain" and u.shape[1]:
                u = self._along(axis, u, None, "so far")  # zeros beyond the end of a row come last
        return Lines(torch.cat(k, dim=1), torch.cat(v, dim=1), lengths)

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        if not isinstance(state, Lines):
            return super().step(x_t, state)
        self._needs_decoding()
        t = state.lengths
        self._check_room(state.k.shape[2] + 1, math.prod(self.shape) + 1, "tokens and what pads them")
        y, u, k_new, v_new = torch.zeros_like(x_t), x_t, [], []
        for axis, size in enumerate(self.shape):
            maps, stride = self._maps(axis), math.prod(self.shape[axis + 1 :])
            q, k, v = (project(u).unflatten(1, (self.heads, -1)) for project in (maps.query, maps.key, maps.value))
            own = slice(axis * self.heads, (axis + 1) * self.heads)
            back = torch.arange(1, size, device=t.device)
            seen = back <= (t // stride % size)[:, None]  # [b, size - 1] earlier tokens of the line
            place = ((t[:, None] - back * stride).clamp(min=0) * seen)[:, None, :, None]
            if state.k.shape[2] and size > 1:
                keys, values = (torch.cat([u[:, own].take_along_dim(place, dim=2), new[:, :, None]], dim=2)
                                for u, new in ((state.k, k), (state.v, v)))  # fmt: skip
                seen = F.pad(seen, (0, 1), value=True)
            else:
                keys, values, seen = k[:, :, None], v[:, :, None], torch.ones_like(t, dtype=torch.bool)[:, None]
            read = attend_once(q, keys, values, seen[:, None])
            out = maps.out(as_operand(read.flatten(1), maps.out.weight))
            y, u = (out, out) if self.combine == "chain" else (y + out, x_t)
            k_new.append(k)
            v_new.append(v)
        k, v = (append(old, torch.cat(new, dim=1), t) for old, new in ((state.k, k_new), (state.v, v_new)))
        return y, Lines(k, v, t + 1)

    def _along(
        self, axis: int, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, line: Line
    ) -> Float[Tensor, "b n d"]:
        """F_a: projections of x, attention along the lines of an axis, and the output projection."""
        n, size, after = x.shape[1], self.shape[axis], math.prod(self.shape[axis + 1 :])
        lines = -(-n // (size * after))  # blocks needed, each spanning this axis and those after it
        missing = lines * size * after - n
        visible = self._visible(mask, n, lines, size, after, line, x)
        whole = F.pad(x, (0, 0, 0, missing)) if missing else x
        whole = whole.unflatten(1, (lines, size, after)).transpose(2, 3).flatten(0, 2)  # [b lines after, size, d]
        maps = self._maps(axis)
        q, k, v = (self._split(project(whole)) for project in (maps.query, maps.key, maps.value))
        p = self.active_dropout
        if visible is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=line == "so far", dropout_p=p)
        else:
            y = masked_attention(q, k, v, visible, dropout=p)
        y = maps.out(as_operand(y.transpose(1, 2).flatten(2), maps.out.weight))
        return y.unflatten(0, (len(x), lines, after)).transpose(2, 3).flatten(1, 3)[:, :n]

    def _visible(
        self, mask: Bool[Tensor, "b n"] | None, n: int, lines: int, size: int, after: int, line: Line, x: Tensor
    ) -> Bool[Tensor, "_b 1 _n size"] | None:
        """Which tokens of a line its tokens see; None where `line` alone determines it."""
        missing = lines * size * after - n
        if mask is None and (not missing or line == "so far"):  # the missing tokens come last
            return None
        real = x.new_ones(len(x), n, dtype=torch.bool) if mask is None else mask
        real = F.pad(real, (0, missing)).unflatten(1, (lines, size, after)).movedim(3, 2).flatten(0, 2)[:, None, None]
        order = x.new_ones(size, size, dtype=torch.bool)
        return real if line == "whole" else real & order.tril()

    def _maps(self, axis: int) -> "Projections":
        maps = self.axes[axis if len(self.axes) > 1 else 0]
        assert isinstance(maps, Projections)
        return maps

    def _grid(self, shape: tuple | None) -> tuple[int, ...]:
        if shape is not None:
            if len(shape) < 2 or not all(isinstance(size, int) and size >= 1 for size in shape):
                raise UsageError(f"axial needs a shape of two whole numbers or more, as in (32, 32), got {shape}.")
            return tuple(shape)
        if self.max_length is None:
            raise UsageError(
                "axial lays tokens out as a grid; give its shape, as in axial(shape=(32, 32)), or say how long a "
                "sequence may get with max_length=..."
            )
        columns = max(1, round(math.sqrt(self.max_length)))
        return -(-self.max_length // columns), columns


class Projections(nn.Module):
    """The linear projections around the attention along an axis."""

    def __init__(self, dim: int, inner: int, bias: bool):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, inner, bias=bias) for _ in "qkv")
        self.out = nn.Linear(inner, dim, bias=bias)
