"""Running softmax: slots that hold a weighted mean of all tokens so far, read without ever storing the slots.

    P_tf = sum_{s <= t} exp(a_sf) x_s / sum_{s <= t} exp(a_sf)        a: one logit per token and slot f

`scores` compares each query with the slots of its own moment, `read` takes a weighted sum of them:

    scores_tf = q_t . P_tf (of keys)          read_t = sum_f p_tf P_tf (of values)

A logit of -inf hides a token from a slot; a slot that has seen nothing holds 0. `reference` defines the answers.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.running_softmax import chunked, reference

Implementation = Literal["auto", "reference", "chunked"]
MODULES = {"auto": chunked, "reference": reference, "chunked": chunked}


def scores(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    a: Float[Tensor, "b h t r"],
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t r"]:
    """q_t . sum_{s <= t} exp(a_s) k_s / sum_{s <= t} exp(a_s), for every slot."""
    with without_autocast(q):
        return MODULES[impl].scores(*map(at_least_single, (q, k, a)))


def read(
    p: Float[Tensor, "b h t r"],
    a: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "b h t e"]:
    """The sum over slots of p_t times sum_{s <= t} exp(a_s) v_s / sum_{s <= t} exp(a_s)."""
    with without_autocast(p):
        return MODULES[impl].read(*map(at_least_single, (p, a, v)))
