"""Attention between channels by the tokens so far: their normalised covariance under a softmax mixes each value.

    G_t = sum_{s <= t} q_s k_s^T      A_t = softmax_b(temperature G_t,ab / (|q_a|_t |k_b|_t))      y_t = A_t v_t

with |q_a|_t the norm of channel a of all queries up to t. A token that is all 0 changes nothing. In float32 or better.
`reference` takes a chunk of tokens at a time, whose covariances are written out and recomputed in the backward pass.
`triton` keeps the current covariance on chip: it is given the one at the start of each chunk, takes all chunks at once,
and is deterministic. Time O(n c^2), memory O(n c + (n / C) c^2) for chunks of C tokens, and C c^2 more in the
reference.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose, unsupported_inputs
from longspan.kernels.launch import ceil
from longspan.kernels.running_covariance import operator, reference
from longspan.kernels.running_covariance.reference import Sums, channel_weights

__all__ = ["Sums", "channel_weights", "running_covariance"]

WIDEST = 128  # channels of a head, whose covariance and its gradient have to stay in registers


def running_covariance(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t c"],
    temperature: Float[Tensor, "h 1 1"],
    sums: Sums | None = None,
    *,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b h t c"], Sums]:
    """The output, and the sums after all tokens.

    >>> y, sums = running_covariance(q, k, v, temperature)
    """
    b, h, length, c = q.shape
    state = sums or (q.new_zeros(b, h, c, c), q.new_zeros(b, h, c), q.new_zeros(b, h, c))
    by_triton = choose(impl, "running_covariance", q, _unsupported_reason(q, k, v)) == "triton"
    if length == 0:
        return v, state
    return _by_chunks(q, k, v, temperature, state) if by_triton else reference.forward(q, k, v, temperature, state)


def _by_chunks(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t c"],
    temperature: Float[Tensor, "h 1 1"],
    state: Sums,
) -> tuple[Float[Tensor, "b h t c"], Sums]:
    """Each chunk from the sums before it."""
    chunks = ceil(q.shape[2], operator.CHUNK)
    rest = chunks * operator.CHUNK - q.shape[2]
    whole_q, whole_k = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (chunks, operator.CHUNK)) for x in (q, k))
    added = (whole_q.mT @ whole_k, whole_q.square().sum(dim=3), whole_k.square().sum(dim=3))
    ends = [torch.cat([first[:, :, None], new], dim=2).cumsum(dim=2) for first, new in zip(state, added, strict=True)]
    y = operator.forward(q, k, v, temperature.flatten(), *(x[:, :, :-1] for x in ends))
    covariance, square_q, square_k = (x[:, :, -1] for x in ends)
    return y, (covariance, square_q, square_k)


def _unsupported_reason(q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], v: Float[Tensor, "b h t c"]) -> str:
    if q.dtype != torch.float32:
        return f"it takes float32, got {q.dtype}"
    if q.shape[3] > WIDEST:
        return f"heads may be {WIDEST} channels wide, got {q.shape[3]}"
    return unsupported_inputs(q, k, v)
