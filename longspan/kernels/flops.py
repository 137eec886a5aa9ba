"""FLOP formulas for torch's counter, which knows only torch's own operators, and some of them too roughly.

    @counts(torch.ops.longspan.lsh_attention)
    def _(z, v, order, *rest, **options): ...          # gets shapes in place of tensors; a multiply-add is two

    with FlopCounterMode(custom_mapping=formulas()): ...

For fused attention that is causal or has a window only visible pairs are counted, where torch counts all. A Fourier
transform of N points is 5 N log2 N operations, of real numbers half of that; a running sum or maximum is one operation
per element. Other operators are added by torch's `register_flop_formula`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

FORMULAS: dict[Any, Callable[..., int]] = {}


def counts(operation: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a formula for an operator; given its arguments, with shapes for tensors, it returns the operations."""

    def enter(formula: Callable[..., int]) -> Callable[..., int]:
        FORMULAS[operation] = formula
        return formula

    return enter


def formulas() -> dict[Any, Callable[..., int]]:
    """Those of torch's operators, and of ours whose modules are imported, as those that a layer calls always are."""
    return FORMULAS


aten = torch.ops.aten


def causal_pairs(n: int, m: int) -> int:
    """How many pairs of a query and a key no later than it there are.

    >>> causal_pairs(3, 3), causal_pairs(3, 2)
    (6, 5)
    """
    shorter = min(n, m)
    return shorter * (shorter + 1) // 2 + (n - shorter) * m


def window_pairs(n: int, left: int, right: int) -> int:
    """How many pairs of a query i and a key i - left ... i + right there are in a row.

    >>> window_pairs(3, 1, 0), window_pairs(3, 9, 9)
    (5, 9)
    """
    left, right = min(left, n - 1), min(right, n - 1)
    return n * (left + 1 + right) - left * (left + 1) // 2 - right * (right + 1) // 2


def _attention(operation: Any, *, backward: bool) -> Callable[..., int]:
    """Two products of every query with every key it sees; in the backward pass the scores again, and four more."""
    names = [argument.name for argument in operation.default._schema.arguments]
    token_axis = -3 if "window_size_left" in names else -2  # FlashAttention itself takes [b n h c]

    def formula(*args: Any, out_val: Any = None, **options: Any) -> int:
        given = dict(zip(names, args, strict=False)) | options
        q, k, v = given["query"], given["key"], given["value"]
        n, m, heads = q.shape[token_axis], k.shape[token_axis], q.shape[-5 - token_axis]
        rows = [(n, m)] * math.prod(q.shape[:-3])
        if given.get("cum_seq_q") is not None and q.ndim == 3:
            lengths = (given[name].diff().tolist() for name in ("cum_seq_q", "cum_seq_k"))
            heads, rows = q.shape[1], zip(*lengths, strict=True)
        left, right = given.get("window_size_left"), given.get("window_size_right")
        if left is not None and right is not None:
            pairs = sum(window_pairs(n, left, right) for n, _ in rows)
        else:
            pairs = sum(causal_pairs(n, m) if given.get("is_causal") else n * m for n, m in rows)
        c, e = q.shape[-1], v.shape[-1]
        return 2 * heads * pairs * ((3 * c + 2 * e) if backward else (c + e))

    formula._get_raw = True  # pyright: ignore[reportFunctionMemberAccess]  # torch then hands over the tensors themselves
    return formula


def transform(numbers: int, points: int, *, real: bool) -> int:
    """FLOPs of Fourier transforms of `points` points each, over `numbers` elements in all.

    >>> transform(2048, 1024, real=False)
    102400
    """
    return round((2.5 if real else 5) * numbers * math.log2(max(points, 1)))


def _fourier(x: Any, dims: Any, *rest: Any, real: bool = True, out_shape: Any = None, **options: Any) -> int:
    numbers = max(x, out_shape, key=math.prod)  # the real side: the other one has half as many
    return transform(math.prod(numbers), math.prod(numbers[dim] for dim in dims), real=real)


def _running(x: Any, *rest: Any, **options: Any) -> int:
    return math.prod(x)


_FUSED = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")
_FUSED += ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")
_FUSED += ("_flash_attention",)

FORMULAS |= {aten._fft_r2c: _fourier, aten._fft_c2r: _fourier, aten._fft_c2c: partial(_fourier, real=False)}
FORMULAS |= dict.fromkeys((aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.cummax, aten.cummin), _running)
for _name in _FUSED:
    _forward = getattr(aten, _name if _name != "_flash_attention" else f"{_name}_forward")
    _backward = getattr(aten, f"{_name}_backward")
    FORMULAS |= {_forward: _attention(_forward, backward=False), _backward: _attention(_backward, backward=True)}
