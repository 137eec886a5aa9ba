"""Causal linear attention: each query reads the sum of key-value products up to its own position.

    y_t = q_t . sum_{s <= t} exp(G_t - G_s) k_s v_s^T      G_t = g_1 + ... + g_t

The log-decay g (at most 0; leave it out for none) lets the past fade. A denominator costs nothing extra: append a
column of ones to v. Sums run in float32 or better, and so does the result. `reference` defines the answer.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from longspan.kernels.causal_linear import chunked, reference
from longspan.kernels.precision import at_least_single, without_autocast

IMPLEMENTATIONS = {"reference": reference.causal_linear, "chunked": chunked.causal_linear}


def causal_linear(
    q: Float[Tensor, "b h t r"],
    k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    *,
    decay: Float[Tensor, "b h t"] | None = None,
    impl: Literal["auto", "reference", "chunked"] = "auto",
) -> Float[Tensor, "b h t e"]:
    """y_t = q_t . sum_{s <= t} exp(G_t - G_s) k_s v_s^T for the log-decay G = cumsum(decay).

    >>> y = causal_linear(q, k, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1))
    >>> attention = y[..., :-1] / y[..., -1:]
    """
    with without_autocast(q):
        q, k, v = map(at_least_single, (q, k, v))
        return IMPLEMENTATIONS["chunked" if impl == "auto" else impl](q, k, v, decay)
