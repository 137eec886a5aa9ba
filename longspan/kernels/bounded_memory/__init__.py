"""Running softmax: attention over a few slots, each of which holds a weighted mean of all tokens so far.

    K_tf = sum_{s <= t} exp(a_sf) k_s / sum_{s <= t} exp(a_sf)      a_s = k_s A      a logit for each token and slot f
    V_tf = sum_{s <= t} exp(b_sf) v_s / sum_{s <= t} exp(b_sf)      b_s = v_s B, or a_s without a control of values
    y_t  = sum_f softmax_f(q_t . K_tf / sqrt(c)) V_tf      `attend`
    y_t  = sum_f p_tf V_tf                                 `mix`, with p and b given

over the real keys s; not causal, over all of them. A slot that has seen nothing holds 0. Sums run in float32 or better,
the result has the type of v, and the slots of all moments are never stored. `reference` defines the answer; where it
would write out pairs of tokens, `chunked` takes its place. `triton` takes float32 or bfloat16 and up to 64 slots for
heads up to 64 wide, 32 for heads up to 128, rounds weights to the type of its inputs, and is deterministic; it has no
`mix`.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.bounded_memory import chunked, operator, reference
from longspan.kernels.bounded_memory.operator import MemoryShape
from longspan.kernels.bounded_memory.reference import logits, mean, merge, pool
from longspan.kernels.dispatch import choose, lack_of_room, unsupported_inputs
from longspan.kernels.precision import at_least_single, without_autocast

__all__ = ["attend", "attend_by_logits", "logits", "mean", "merge", "mix", "pool"]

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
    """Attention of every query over the slots of its moment; without `control_value` both memories are written alike.

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


def attend_by_logits(
    q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], v: Float[Tensor, "b h t e"], a: Float[Tensor, "b h t r"]
) -> Float[Tensor, "b h t e"]:
    """The causal `attend` with one logit given for both memories, -inf for padding; all in float32 or better."""
    return chunked.attend(q, k, v, a, a)


def mix(
    p: Float[Tensor, "b h t r"],
    b: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    *,
    key_mask: Bool[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b h t e"]:
    """What each token takes from the slots of its own moment, by shares p that need not add up to one.

    >>> y = bounded_memory.mix(q.softmax(dim=-1), k, v, key_mask=mask)
    """
    with without_autocast(v):
        b = at_least_single(b)
        b = b if key_mask is None else b.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        return chunked.mix(at_least_single(p), b, at_least_single(v)).to(v.dtype)


def _unsupported_reason(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    control_key: Float[Tensor, "c r"],
) -> str:
    if reason := unsupported_inputs(q, k, v):
        return reason
    shape = MemoryShape.of(q, v, control_key, causal=True)
    memory = shape.width * shape.slots
    if shape.width > WIDEST or memory > LARGEST:
        found = f"{shape.width} and {shape.slots}, both filled up to powers of two"
        return f"heads must be at most {WIDEST} wide and that times the slots at most {LARGEST}, got {found}"
    return lack_of_room(q, LARGE_BYTES) if memory > LARGE else ""
