"""Operations of kernels that torch's counter does not know, or knows too roughly; a multiply-add is two.

`FORMULAS` is made for `FlopCounterMode(custom_mapping=FORMULAS)`. A causal fused attention counts the pairs it sees,
where torch counts all. A Fourier transform of N points counts 5 N log2 N, of real numbers half of that; a running sum
or maximum one operation a number. An operator of one's own is added by torch's `register_flop_formula`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# which make torch.ops.longspan known
from longspan.kernels import feature_attention, positive_features, ragged_linear, sampled_scores  # noqa: F401
from longspan.kernels.running_softmax import fused as running_softmax  # noqa: F401

aten = torch.ops.aten


def causal_pairs(n: int, m: int) -> int:
    """How many pairs of a query and a key no later than it there are.

    >>> causal_pairs(3, 3), causal_pairs(3, 2)
    (6, 5)
    """
    shorter = min(n, m)
    return shorter * (shorter + 1) // 2 + (n - shorter) * m


def _attention(operation: Any, *, back: bool) -> Callable[..., int]:
    """Two products of every query with every key it sees; on the way back the scores again, and four more."""
    names = [argument.name for argument in operation.default._schema.arguments]

    def formula(*args: Any, out_val: Any = None, **options: Any) -> int:
        given = dict(zip(names, args, strict=False)) | options
        q, k, v = given["query"], given["key"], given["value"]
        if given.get("cum_seq_q") is not None and q.ndim == 3:
            heads, rows = q.shape[1], zip(_lengths(given["cum_seq_q"]), _lengths(given["cum_seq_k"]), strict=True)
        else:
            heads, rows = q.shape[1], [(q.shape[-2], k.shape[-2])] * q.shape[0]
        pairs = sum(causal_pairs(n, m) if given.get("is_causal") else n * m for n, m in rows)
        c, e = q.shape[-1], v.shape[-1]
        return 2 * heads * pairs * ((3 * c + 2 * e) if back else (c + e))

    formula._get_raw = True  # pyright: ignore[reportFunctionMemberAccess]  # torch then hands over the tensors themselves
    return formula


def _lengths(offsets: Tensor) -> list[int]:
    return offsets.diff().tolist()


def _real_to_complex(x: Any, dims: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return transform(math.prod(x), math.prod(x[dim] for dim in dims), real=True)


def _complex_to_real(x: Any, dims: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return transform(math.prod(out_shape), math.prod(out_shape[dim] for dim in dims), real=True)


def _complex_to_complex(x: Any, dims: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return transform(math.prod(x), math.prod(x[dim] for dim in dims), real=False)


def transform(numbers: int, points: int, *, real: bool) -> int:
    """Fourier transforms of so many points each, on so many numbers in all.

    >>> transform(2048, 1024, real=False)
    102400
    """
    return round((2.5 if real else 5) * numbers * math.log2(max(points, 1)))


def _running(x: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return math.prod(x)


def _ragged_linear(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """Every key into the sums, every query against them; the sums have a column more, the denominator."""
    return 2 * (k[0] + q[0]) * q[1] * q[2] * (v[2] + 1)


def _ragged_linear_back(dy: Any, q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _ragged_linear(q, k, v)


def _feature_attention(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """The same for [b h n c], whatever is done pair by pair within a tile; a cosine doubles the width of features."""
    feature = next(word for word in rest if isinstance(word, str))
    return 2 * math.prod(q[:2]) * (q[2] + k[2]) * q[3] * (2 if feature == "cosine" else 1) * (v[3] + 1)


def _feature_attention_back(dy: Any, dd: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * _feature_attention(*rest)


def _positive_features(x: Any, projection: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    """One product with every row of the projection, however often it is made again."""
    return 2 * math.prod(x) * projection[0]


def _positive_features_back(dphi: Any, phi: Any, x: Any, projection: Any, *rest: Any, **options: Any) -> int:
    return _positive_features(x, projection)


def _within_chunks(*given: Any, out_shape: Any = None, **options: Any) -> int:
    """An exponential, a product and a sum for every pair and slot; logits come last but one."""
    chunks, tokens, slots = given[-2]
    return 3 * chunks * tokens * (tokens + 1) // 2 * slots


def _sampled_scores(q: Any, k: Any, sample: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * math.prod(q) * sample[2]


_FUSED = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")
_FUSED += ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")
_FUSED += ("_flash_attention",)

FORMULAS: dict[Any, Callable[..., int]] = {
    aten._fft_r2c: _real_to_complex,
    aten._fft_c2r: _complex_to_real,
    aten._fft_c2c: _complex_to_complex,
    aten.cumsum: _running,
    aten.cumprod: _running,
    aten.logcumsumexp: _running,
    aten.cummax: _running,
    aten.cummin: _running,
    torch.ops.longspan.ragged_linear: _ragged_linear,
    torch.ops.longspan.ragged_linear_backward: _ragged_linear_back,
    torch.ops.longspan.feature_attention: _feature_attention,
    torch.ops.longspan.feature_attention_backward: _feature_attention_back,
    torch.ops.longspan.positive_features: _positive_features,
    torch.ops.longspan.positive_features_backward: _positive_features_back,
    torch.ops.longspan.largest_features: _positive_features,
    torch.ops.longspan.running_softmax_rows: _within_chunks,
    torch.ops.longspan.running_softmax_pairs: _within_chunks,
    torch.ops.longspan.running_softmax_keys: _within_chunks,
    torch.ops.longspan.sampled_scores: _sampled_scores,
}
for _name in _FUSED:
    _forth = getattr(aten, _name if _name != "_flash_attention" else f"{_name}_forward")
    _back = getattr(aten, f"{_name}_backward")
    FORMULAS |= {_forth: _attention(_forth, back=False), _back: _attention(_back, back=True)}
