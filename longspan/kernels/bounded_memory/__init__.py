"""Running softmax: attention over a few slots, each of which holds a weighted mean of all tokens so far.

    K_tf = sum_{s <= t} exp(a_sf) k_s / sum_{s <= t} exp(a_sf)      a_s = k_s A      a logit for each token and slot f
    V_tf = sum_{s <= t} exp(b_sf) v_s / sum_{s <= t} exp(b_sf)      b_s = v_s B, or a_s without a control of values
    y_t  = sum_f softmax_f(q_t . K_tf / sqrt(c)) V_tf      `attend`

over the real keys s; if not causal, over all of them. With the memory of values alone, always causal:

    y_t  = sum_f softmax_f(q_t . V_tf / sqrt(c)) V_tf      `attend_values`, with b_s = k_s B, a B for each head
    y_t  = sum_f softmax_f(s_tf) V_tf                      `mix`, with scores s and logits b given

A slot that has seen nothing holds 0. Sums run in float32 or better, the result has the type of v, and the slots are
never stored for every token. `reference` defines the answer; where it would write out pairs of tokens, `chunked`
replaces it. `triton` and `one_memory_triton` take float32 or bfloat16 and up to 64 slots for heads up to 64 wide, 32
for heads up to 128, round weights to the type of their inputs, and are deterministic.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.bounded_memory import chunked, one_memory_operator, operator, reference
from longspan.kernels.bounded_memory.one_memory_operator import OneMemoryShape
from longspan.kernels.bounded_memory.operator import MemoryShape
from longspan.kernels.bounded_memory.reference import logits, mean, merge, pool
from longspan.kernels.dispatch import choose, lack_of_room, unsupported_inputs
from longspan.kernels.precision import at_least_single, without_autocast

__all__ = ["attend", "attend_values", "logits", "mean", "merge", "mix", "pool"]

Implementation = Literal["auto", "reference", "chunked", "triton"]
WIDEST = 128  # channels of a head
LARGEST = 64 * 64  # channels times slots: two memories of one row and head have to stay on chip
LARGE, LARGE_BYTES = 64 * 16, 160 * 1024  # above this size they need more shared memory than small GPUs have


def attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    control_key: Float[Tensor, "c r"],
    control_value: Float[Tensor, "_ r"] | None = None,
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "b m"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h n e"]:
    """Attention of every query over the slots at its time step; without `control_value` both memories share logits.

    >>> y = bounded_memory.attend(q, k, v, control_key, control_value, causal=True, key_mask=mask)
    """
    with without_autocast(q):
        reason = _unsupported_reason(q, k, v, control_key)
        kernel = impl in ("auto", "triton") and choose(impl, "bounded_memory", q, reason)
        if kernel == "triton":
            return operator.forward(q, k, v, control_key, control_value, key_mask, causal)[0]
        dtype = v.dtype
        q, k, v = map(at_least_single, (q, k, v))
        a, b = logits(k, v, control_key, control_value, key_mask)
        if causal and impl != "reference":
            return chunked.attend(q, k, v, a, b).to(dtype)
        return reference.attend(q, k, v, a, b, causal).to(dtype)


def attend_values(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t e"],
    control: Float[Tensor, "h c r"],
    *,
    key_mask: Bool[Tensor, "b t"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t e"]:
    """Attention of every query over the slots at its time step, which are both keys and values.

    >>> y = bounded_memory.attend_values(q, k, v, control, key_mask=mask)
    """
    with without_autocast(q):
        if _by_one_memory(impl, q, k, v, control):
            return one_memory_operator.forward(q, k, v, control, key_mask, True)[0]
        dtype = v.dtype
        q, k, v = map(at_least_single, (q, k, v))
        b = _hidden(k @ control.to(k.dtype), key_mask)
        if impl == "reference":
            return reference.attend(q, v, v, b, b, causal=True).to(dtype)
        return chunked.attend(q, v, v, b, b).to(dtype)


def mix(
    scores: Float[Tensor, "b h t r"],
    b: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    *,
    key_mask: Bool[Tensor, "b t"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t e"]:
    """The slots at the time step of each token, mixed by the softmax of its scores.

    >>> y = bounded_memory.mix(q, k, v, key_mask=mask)
    """
    with without_autocast(v):
        if _by_one_memory(impl, scores, b, v):
            return one_memory_operator.forward(scores, b, v, None, key_mask, False)[0]
        dtype = v.dtype
        scores, b, v = map(at_least_single, (scores, b, v))
        p, b = scores.softmax(dim=-1), _hidden(b, key_mask)
        return (reference.mix(p, b, v) if impl == "reference" else chunked.mix(p, b, v)).to(dtype)


def _hidden(a: Float[Tensor, "b h t r"], key_mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b h t r"]:
    return a if key_mask is None else a.masked_fill(~key_mask[:, None, :, None], -torch.inf)


def _unsupported_reason(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    control_key: Float[Tensor, "c r"],
) -> str:
    shape = MemoryShape.of(q, v, control_key, causal=True)
    return unsupported_inputs(q, k, v) or _too_large(q, shape.width, shape.slots)


def _by_one_memory(
    impl: Implementation,
    q: Float[Tensor, "b h t _"],
    k: Float[Tensor, "b h t _"],
    v: Float[Tensor, "b h t e"],
    control: Float[Tensor, "h c r"] | None = None,
) -> bool:
    """Whether `one_memory_triton` computes this."""
    shape = OneMemoryShape.of(k, v, control, compared=True)
    reason = unsupported_inputs(q, k, v) or _too_large(q, shape.width, shape.slots)
    return impl in ("auto", "triton") and choose(impl, "bounded_memory", q, reason) == "triton"


def _too_large(x: Float[Tensor, "..."], width: int, slots: int) -> str:
    if width > WIDEST or width * slots > LARGEST:
        found = f"{width} and {slots}, both filled up to powers of two"
        return f"heads must be at most {WIDEST} wide and that times the slots at most {LARGEST}, got {found}"
    return lack_of_room(x, LARGE_BYTES) if width * slots > LARGE else ""
