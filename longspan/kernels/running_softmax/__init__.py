"""Running softmax: slots that hold a weighted mean of all tokens so far, read without ever storing the slots.

    P_tf = sum_{s <= t} exp(a_sf) x_s / sum_{s <= t} exp(a_sf)        a: one logit per token and slot f

`scores` compares each query with the slots of its own moment, `read` takes a weighted sum of them:

    scores_tf = q_t . P_tf (of keys)          read_t = sum_f p_tf P_tf (of values)

A logit of -inf hides a token from a slot; a slot that has seen nothing holds 0. `reference` defines the answers;
`chunked` needs matrix products alone, `triton` is the same with kernels for what goes on within a chunk.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.running_softmax import chunked, fused, reference

Implementation = Literal["auto", "reference", "chunked", "triton"]


def scores(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    a: Float[Tensor, "b h t r"],
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t r"]:
    """q_t . sum_{s <= t} exp(a_s) k_s / sum_{s <= t} exp(a_s), for every slot."""
    with without_autocast(q):
        q, k, a = map(at_least_single, (q, k, a))
        if impl == "reference":
            return reference.scores(q, k, a)
        return chunked.scores(q, k, a, fused=_takes_kernels(impl, a))


def read(
    p: Float[Tensor, "b h t r"],
    a: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t e"]:
    """The sum over slots of p_t times sum_{s <= t} exp(a_s) v_s / sum_{s <= t} exp(a_s)."""
    with without_autocast(p):
        p, a, v = map(at_least_single, (p, a, v))
        if impl == "reference":
            return reference.read(p, a, v)
        return chunked.read(p, a, v, fused=_takes_kernels(impl, a))


def _takes_kernels(impl: Implementation, a: Float[Tensor, "b h t r"]) -> bool:
    return impl == "triton" or (impl == "auto" and fused.fits(a))
