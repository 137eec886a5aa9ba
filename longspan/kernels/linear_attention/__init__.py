"""Linear attention: the weight of a pair is a product of two features, so that keys and values are summed once.

    y_t = sum_s w_ts v_s / max(sum_s w_ts + eps, floor)      w_ts = phi(q_t) . phi(k_s)

over the real keys s of a row, in the causal form over s <= t. phi is one of

    "none"     the tensors given are features already
    "elu"      elu(u) + 1
    "sigmoid"  1 / (1 + exp(-u))
    "cosine"   [relu(u) cos(angle), relu(u) sin(angle)], an angle for each token

`normalize=False` leaves out the denominator. With `signed` it keeps its sign, and a size of at least `floor`, for
features whose sums may be negative. A log-decay g_t (at most 0, one per head and token) lets the past fade in
the causal form: w_ts is then multiplied by exp(g_{s+1} + ... + g_t). The state of a row is the sum of its key-value
products [b h r e], with phi(k) itself as last column e + 1 where there is a denominator:

    y, state = linear_attention(q, k, v, causal=True, return_state=True)                      # a prefix or a segment
    y, state = linear_attention(q, k, v, causal=True, initial_state=state, return_state=True)   # the next segment
    y_t, state = linear_attention_step(q_t, k_t, v_t, state)                                   # the next token

Batches are padded, [b h n c] with a `key_mask`, or ragged, [n h c] with `cu_seqlens`. Sums run in float32 or better;
the result has the type of v. `reference` defines the answer. `triton` takes float32 or bfloat16, values and computed
features up to 128 wide (given features of any width), but neither decay nor states: with those `impl="auto"` takes the
reference. It rounds phi to the type of its inputs, reads them in any order of their axes, and is deterministic.
"""

from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import Implementation, choose, lack_of_room, unsupported_inputs
from longspan.kernels.linear_attention import operator, reference
from longspan.kernels.linear_attention.reference import with_ones
from longspan.kernels.linear_attention.shape import WIDEST, feature_width
from longspan.kernels.precision import at_least_single, without_autocast

__all__ = ["Feature", "final_state", "linear_attention", "linear_attention_step", "with_ones"]

WIDE, WIDE_BYTES = 64, 160 * 1024  # wider programs need more shared memory than small GPUs have

Feature = Literal["none", "elu", "sigmoid", "cosine"]


def linear_attention(
    q: Float[Tensor, "*queries c"],
    k: Float[Tensor, "*keys c"],
    v: Float[Tensor, "*keys e"],
    *,
    feature: Feature = "none",
    causal: bool = False,
    key_mask: Bool[Tensor, "b m"] | None = None,
    angles: tuple[Float[Tensor, "*b n"], Float[Tensor, "*b m"]] | None = None,
    decay: Float[Tensor, "*_"] | None = None,
    normalize: bool = True,
    eps: float = 0.0,
    floor: float = 0.0,
    signed: bool = False,
    initial_state: Float[Tensor, "rows h r e_"] | None = None,
    return_state: bool = False,
    cu_seqlens: Int[Tensor, " rows_plus_1"] | None = None,
    max_seqlen: int | None = None,
    query_cu_seqlens: Int[Tensor, " rows_plus_1"] | None = None,
    max_query_seqlen: int | None = None,
    impl: Implementation = "auto",
) -> Any:
    """Attention of every query over the keys of its row: y, or (y, state) with `return_state`.

    Padded q, k and v are [b h n c], with `angles` of queries and of keys [b n] and `decay` [b h n]. Ragged ones are
    [n h c], with angles [n] and decay [n h]: row i holds the keys `cu_seqlens[i]` to `cu_seqlens[i + 1]`, and its
    queries are the same tokens or those given by `query_cu_seqlens`. `max_seqlen` and `max_query_seqlen`, the lengths
    of the longest rows, are known on the host, so that there is no device synchronisation.

    >>> y = linear_attention(q, k, v, feature="elu", causal=True, key_mask=mask, eps=1e-6)
    >>> y = linear_attention(q, k, v, feature="elu", cu_seqlens=layout.cu_seqlens, max_seqlen=layout.max_seqlen)
    """
    if decay is not None and not causal:
        raise UsageError("A decay needs an order of tokens, got causal=False; leave it out or take causal=True.")
    beside = angles or (None, None)
    states = initial_state is not None or return_state
    impl = choose(impl, "linear_attention", q, _unsupported_reason(q, k, v, feature, decay is not None, states))
    how: dict[str, Any] = {"feature": feature, "causal": causal, "angles": beside, "decay": decay}
    how |= {"normalize": normalize, "eps": eps, "floor": floor, "signed": signed, "initial_state": initial_state}
    with without_autocast(q):
        if cu_seqlens is not None:
            rows = _rows(cu_seqlens, max_seqlen, query_cu_seqlens, max_query_seqlen, causal, key_mask)
            if impl == "triton":  # one batch row holds all rows
                as_batch = (rearrange(x, "n h c -> 1 h n c") for x in (q, k, v))
                beside = (None if x is None else x[None] for x in beside)
                y = _triton(
                    *as_batch, None, *beside, *rows[0], *rows[1], feature, causal, normalize, eps, floor, signed
                )
                return rearrange(y, "1 h n e -> n h e")
            y, state = reference.ragged(q, k, v, *rows, **how)
        elif impl == "triton":
            return _triton(q, k, v, key_mask, *beside, None, None, 0, 0, feature, causal, normalize, eps, floor, signed)
        else:
            y, state = reference.linear_attention(q, k, v, key_mask=key_mask, **how)
    return (y, state) if return_state else y


def final_state(
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    feature: Feature = "none",
    key_mask: Bool[Tensor, "b m"] | None = None,
    angles: Float[Tensor, "b m"] | None = None,
    decay: Float[Tensor, "b h m"] | None = None,
    normalize: bool = True,
) -> Float[Tensor, "b h r e_"]:
    """The state after these keys and values, without any query."""
    with without_autocast(k):
        phi_k = reference.features(k, feature, angles, key_mask)
        if decay is not None:
            decay = decay if key_mask is None else decay.masked_fill(~key_mask[:, None], 0)
            to_end = torch.nn.functional.pad(decay[:, :, 1:], (0, 1)).flip(2).cumsum(dim=2).flip(2)
            phi_k = phi_k * to_end[..., None].exp()
        return phi_k.mT @ (with_ones(v) if normalize else at_least_single(v))


def linear_attention_step(
    q: Float[Tensor, "b h c"],
    k: Float[Tensor, "b h c"] | None,
    v: Float[Tensor, "b h e"] | None,
    state: Float[Tensor, "b h r e_"],
    *,
    feature: Feature = "none",
    angles: tuple[Float[Tensor, " b"], Float[Tensor, " b"]] | None = None,
    decay: Float[Tensor, "b h"] | None = None,
    normalize: bool = True,
    eps: float = 0.0,
    floor: float = 0.0,
    signed: bool = False,
) -> tuple[Float[Tensor, "b h e"], Float[Tensor, "b h r e_"]]:
    """The output for one query of each row and the state after its key and value; without those the state is only
    read."""
    of_query, of_key = angles or (None, None)
    with without_autocast(q):
        phi_k = None if k is None else reference.features(k, feature, of_key)
        values = None if v is None else with_ones(v) if normalize else at_least_single(v)
        y, state = reference.step(reference.features(q, feature, of_query), phi_k, values, decay, state)
        return (reference.divided(y, eps=eps, floor=floor, signed=signed) if normalize else y).to(q.dtype), state


def _triton(*inputs: Any) -> Tensor:
    *rest, normalize, eps, floor, signed = inputs
    if not normalize:  # so that every denominator is 1, and a constant in the backward pass
        eps, floor, signed = -torch.inf, 1.0, False
    return operator.forward(*rest, eps, floor, signed)[0]


def _rows(
    cu_seqlens: Tensor,
    max_seqlen: int | None,
    query_cu_seqlens: Tensor | None,
    max_query_seqlen: int | None,
    causal: bool,
    key_mask: Tensor | None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Where the rows of queries and of keys begin, and their greatest lengths."""
    if max_seqlen is None or key_mask is not None:
        raise UsageError("Ragged rows need cu_seqlens with max_seqlen and hold real tokens alone; leave key_mask out.")
    if query_cu_seqlens is None and max_query_seqlen is None:
        return (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen)
    if query_cu_seqlens is None or max_query_seqlen is None:
        raise UsageError(
            "Rows of queries need query_cu_seqlens and max_query_seqlen, got one of them; give both or neither."
        )
    if causal:
        raise UsageError("In the causal form queries and keys are the same tokens; leave query_cu_seqlens out.")
    return (query_cu_seqlens, cu_seqlens), (max_query_seqlen, max_seqlen)


def _unsupported_reason(
    q: Float[Tensor, "*queries c"],
    k: Float[Tensor, "*keys c"],
    v: Float[Tensor, "*keys e"],
    feature: Feature,
    decay: bool = False,
    states: bool = False,
) -> str:
    """Why the Triton kernel cannot take these tensors, or nothing."""
    r, e = feature_width(q.shape[-1], feature), v.shape[-1]
    if decay or states:
        return "it knows neither decay nor initial and final states"
    if reason := unsupported_inputs(q, k, v):
        return reason
    if (r > WIDEST and feature != "none") or e > WIDEST:
        return f"features and values must be at most {WIDEST} wide, got {r} and {e}"
    return lack_of_room(q, WIDE_BYTES) if max(r, e) > WIDE else ""
