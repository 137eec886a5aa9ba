"""Running softmax by chunks, with weights in factors of which every exponent is at most 0.

The unnormalised weight of token s at moment t in slot f is exp(a_sf - m_tf), m_t the maximum up to t. It splits at any
moment u between them, s <= u <= t, into two factors that are both at most 1:

    exp(a_s - m_t) = exp(a_s - m_u) exp(m_u - m_t)

so neither can overflow, and the product underflows only where the weight itself does. Chunks see one another through
u = the ends of chunks and one carried state each. Within a chunk `halves` splits further, by matrix products alone; on
a GPU `fused` takes the exponents pair by pair instead, and keeps none of them.

Products of queries and keys are taken once for a whole chunk, and so are those of weights and values.

Time O(n C (r + e) + n r e), memory O(n (r log C + C + e) + (n / C) r e) for chunks of C tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.chunk_states import before, levelled_sum
from longspan.kernels.running_softmax.fused import Fused
from longspan.kernels.running_softmax.halves import Halves

CHUNK = 64


def scores(
    q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], a: Float[Tensor, "b h t r"], *, fused: bool = False
) -> Float[Tensor, "b h t r"]:
    length = q.shape[2]
    if length == 0:
        return a
    q, k, weights = _in_chunks(q), _in_chunks(k), Weights.of(_in_chunks(a, fill=-torch.inf), fused)
    near, sums = weights.near.within(q @ k.mT)
    total = near + weights.from_start * (q @ before(weights.state(k)).mT)
    return _in_a_row(total / weights.normaliser(sums), length)


def read(
    p: Float[Tensor, "b h t r"], a: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"], *, fused: bool = False
) -> Float[Tensor, "b h t e"]:
    length = p.shape[2]
    if length == 0:
        return v
    p, v, weights = _in_chunks(p), _in_chunks(v), Weights.of(_in_chunks(a, fill=-torch.inf), fused)
    p = p / weights.normaliser(weights.near.sums())
    return _in_a_row(weights.near.over_slots(p) @ v + (p * weights.from_start) @ before(weights.state(v)), length)


@dataclass(frozen=True)
class Weights:
    """The weights exp(a_s - m_t) of a chunked sequence.

    The maximum carries no gradient: it cancels between a sum and its normaliser.
    """

    near: Halves | Fused  # s in the chunk of t
    to_end: Float[Tensor, "b h g c r"]  # from s to the end of its chunk
    from_start: Float[Tensor, "b h g c r"]  # from the end of the chunk before to t
    end: Float[Tensor, "b h g r"]  # the maximum up to the end of each chunk

    @classmethod
    def of(cls, a: Float[Tensor, "b h g c r"], fused: bool) -> "Weights":
        m = _running_maximum(a.detach())
        end = m[:, :, :, -1:]
        start = torch.cat([m[:, :, :1, :1], end[:, :, :-1]], dim=2)  # nothing comes before the first chunk
        near = Fused(a, m) if fused else Halves.of(a, m)
        return cls(near, (a - end).exp(), (start - m).exp(), end[:, :, :, 0])

    def state(self, x: Float[Tensor, "b h g c e"]) -> Float[Tensor, "b h g r e"]:
        """The weighted sum of all x up to the end of each chunk, in every slot."""
        return levelled_sum(self.to_end.mT @ x, self.end)

    def normaliser(self, near: Float[Tensor, "b h g c r"]) -> Float[Tensor, "b h g c r"]:
        """All weights at t summed: at least 1, or 1 for a slot that has seen nothing (and whose weighted sum is 0)."""
        state = levelled_sum(reduce(self.to_end, "b h g c r -> b h g r 1", "sum"), self.end)
        total = near + self.from_start * before(state).mT
        return torch.where(total > 0, total, 1)


def _running_maximum(a: Float[Tensor, "b h g c r"]) -> Float[Tensor, "b h g c r"]:
    """The maximum of all tokens up to each: within chunks first, because a GPU walks along one row token by token."""
    within = a.cummax(dim=3).values
    ends = within[:, :, :, -1].mT.contiguous().cummax(dim=3).values.mT
    earlier = torch.cat([torch.full_like(ends[:, :, :1], -torch.inf), ends[:, :, :-1]], dim=2)
    m = torch.maximum(within, earlier[:, :, :, None])
    return m.clamp(min=torch.finfo(a.dtype).min / 4)  # finite where all is hidden, and far below any logit


def _in_chunks(x: Float[Tensor, "b h t r"], fill: float = 0.0) -> Float[Tensor, "b h g c r"]:
    chunk = CHUNK
    while chunk // 2 >= x.shape[2]:
        chunk //= 2
    chunks = -(-x.shape[2] // chunk)
    missing = chunks * chunk - x.shape[2]
    x = F.pad(x, (0, 0, 0, missing), value=fill) if missing else x
    return x.unflatten(2, (chunks, chunk))


def _in_a_row(x: Float[Tensor, "b h g c r"], length: int) -> Float[Tensor, "b h t r"]:
    return rearrange(x, "b h g c r -> b h (g c) r")[:, :, :length]
