"""Exact attention over few diagonals: query i sees the keys i - o for a list of offsets o, negative ones looking ahead.

    y_i = sum_o p_io v_{i-o}      p_i = softmax_o(q_i . k_{i-o} / sqrt(c))

over the real keys that exist; a row that sees none gives 0. One pass over the tokens for each offset: time grows with n
times the number of offsets, memory only with n, since neither scores nor copies of keys are kept. `reference` defines
the answer and keeps the scores; `triton` visits all keys of a tile of queries in one program.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.diagonals import operator, reference
from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.masked import masked_attention
from longspan.kernels.precision import without_autocast

WIDEST = 128  # channels of a head that a program of the Triton kernel can hold
SHORT = 12  # tokens per offset up to which, on a CPU, all pairs at once are faster than one diagonal at a time


def diagonals(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n e"],
    offsets: list[int],
    *,
    key_mask: Bool[Tensor, "b n"] | None = None,
    rows: Int[Tensor, "b n"] | None = None,
    dropout: float = 0.0,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Softmax attention over the keys at these offsets, each less than n; different `rows` never see each other.

    Without the kernel `auto` takes one offset at a time, for short rows all pairs at once, and the reference only for
    dropout.
    """
    if impl == "reference" or dropout:
        return reference.diagonals(q, k, v, offsets, key_mask=key_mask, rows=rows, dropout=dropout)
    fast = choose(impl, "diagonals", q, _unsupported_reason(q, v)) == "triton"
    with without_autocast(q):
        if not fast and is_short(q.shape[2], offsets):
            return masked_attention(q, k.to(q.dtype), v, _visible(offsets, q, key_mask, rows))
        return operator.forward(q, k.to(q.dtype), v, offsets, key_mask, rows, fast)[0]


def is_short(n: int, offsets: list[int]) -> bool:
    """Whether a CPU takes all pairs of a row of n tokens at once."""
    return n <= SHORT * len(offsets)


def _visible(
    offsets: list[int],
    q: Float[Tensor, "b h n c"],
    key_mask: Bool[Tensor, "b n"] | None,
    rows: Int[Tensor, "b n"] | None,
) -> Bool[Tensor, "#b 1 n n"]:
    """Which key each query sees, as a matrix."""
    place = torch.arange(q.shape[2], device=q.device)
    seen = torch.isin(place[:, None] - place, torch.tensor(offsets, device=q.device))[None, None]
    seen = seen if key_mask is None else seen & key_mask[:, None, None]
    return seen if rows is None else seen & (rows[:, None, :, None] == rows[:, None, None])


def _unsupported_reason(q: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]) -> str:
    if q.dtype != v.dtype or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it takes q, k and v all in float32 or half precision, got {q.dtype} and {v.dtype}"
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"heads must be at most {WIDEST} wide, got {q.shape[3]} and {v.shape[3]}"
    return "" if v.numel() else "there are no tokens"


__all__ = ["diagonals", "is_short"]
