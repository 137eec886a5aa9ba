"""Causal running softmax by chunks, with weights split into factors whose exponents are at most 0: on any device.

The unnormalised weight of token s at time t in slot f is exp(a_sf - m_tf), m_t the maximum up to t. Between chunks it
splits at u, the end of a chunk, into two factors that are both at most 1:

    exp(a_s - m_t) = exp(a_s - m_u) exp(m_u - m_t)

so neither can overflow, and the product underflows only where the weight itself does: one carried state for each chunk.
Within a chunk the weights of all pairs are written out.

Time O(n (C r + r e)), memory O(n C r + (n / C) r e) for chunks of C tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.running_sum import before, rescaled_sum

CHUNK = 16


def attend(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b h t c"],
    v: Float[Tensor, "b h t e"],
    a: Float[Tensor, "b h t r"],
    b: Float[Tensor, "b h t r"],
) -> Float[Tensor, "b h t e"]:
    length = q.shape[2]
    if length == 0:
        return v
    q, k, v = _in_chunks(q), _in_chunks(k), _in_chunks(v)
    of_keys = Weights.of(_in_chunks(a, fill=-torch.inf))
    of_values = of_keys if a is b else Weights.of(_in_chunks(b, fill=-torch.inf))
    scores = _compare(q * q.shape[-1] ** -0.5, k, of_keys)
    return rearrange(_mix(scores.softmax(dim=-1), v, of_values), "b h g t e -> b h (g t) e")[:, :, :length]


def mix(
    p: Float[Tensor, "b h t r"], b: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"]
) -> Float[Tensor, "b h t e"]:
    length = v.shape[2]
    if length == 0:
        return v
    y = _mix(_in_chunks(p), _in_chunks(v), Weights.of(_in_chunks(b, fill=-torch.inf)))
    return rearrange(y, "b h g t e -> b h (g t) e")[:, :, :length]


@dataclass(frozen=True)
class Weights:
    """The weights exp(a_s - m_t) of a chunked sequence.

    The maximum carries no gradient: it cancels between a sum and its normaliser.
    """

    near: Float[Tensor, "b h g t s r"]  # s and t in the same chunk, 0 for s after t
    to_end: Float[Tensor, "b h g s r"]  # from s to the end of its chunk
    from_start: Float[Tensor, "b h g t r"]  # from the end of the chunk before to t
    end: Float[Tensor, "b h g r"]  # the maximum up to the end of each chunk

    @classmethod
    def of(cls, a: Float[Tensor, "b h g t r"]) -> "Weights":
        m = _running_maximum(a.detach())
        end = m[:, :, :, -1:]
        start = torch.cat([m[:, :, :1, :1], end[:, :, :-1]], dim=2)  # nothing comes before the first chunk
        later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=a.device).triu(1)[..., None]
        near = (a[:, :, :, None] - m[:, :, :, :, None]).masked_fill(later, -torch.inf).exp()
        return cls(near, (a - end).exp(), (start - m).exp(), end[:, :, :, 0])

    def found(self, x: Float[Tensor, "b h g t e"]) -> Float[Tensor, "b h g r e"]:
        """The weighted sum of all x before each chunk, in every slot."""
        return before(rescaled_sum(self.to_end.mT @ x, self.end))

    @property
    def normaliser(self) -> Float[Tensor, "b h g t r"]:
        """All weights at t summed: at least 1, or 1 for a slot that has seen nothing (and whose weighted sum is 0)."""
        found = before(rescaled_sum(reduce(self.to_end, "b h g s r -> b h g r 1", "sum"), self.end))
        total = self.near.sum(dim=4) + self.from_start * found.mT
        return torch.where(total > 0, total, 1)


def _compare(
    q: Float[Tensor, "b h g t c"], k: Float[Tensor, "b h g t c"], weights: Weights
) -> Float[Tensor, "b h g t r"]:
    """q_t . P_tf, each query with the slots at its own time step."""
    near = einsum(q @ k.mT, weights.near, "b h g t s, b h g t s r -> b h g t r")
    return (near + weights.from_start * (q @ weights.found(k).mT)) / weights.normaliser


def _mix(p: Float[Tensor, "b h g t r"], v: Float[Tensor, "b h g t e"], weights: Weights) -> Float[Tensor, "b h g t e"]:
    """sum_f p_tf P_tf."""
    p = p / weights.normaliser
    near = einsum(p, weights.near, "b h g t r, b h g t s r -> b h g t s")
    return near @ v + (p * weights.from_start) @ weights.found(v)


def _running_maximum(a: Float[Tensor, "b h g t r"]) -> Float[Tensor, "b h g t r"]:
    """The running maximum over tokens: within chunks first, because a GPU scans one row token by token."""
    within = a.cummax(dim=3).values
    ends = within[:, :, :, -1].mT.contiguous().cummax(dim=3).values.mT
    earlier = torch.cat([torch.full_like(ends[:, :, :1], -torch.inf), ends[:, :, :-1]], dim=2)
    m = torch.maximum(within, earlier[:, :, :, None])
    return m.clamp(min=torch.finfo(a.dtype).min / 4)  # finite where all is hidden, and far below any logit


def _in_chunks(x: Float[Tensor, "b h t r"], fill: float = 0.0) -> Float[Tensor, "b h g chunk r"]:
    chunks = -(-x.shape[2] // CHUNK)
    return F.pad(x, (0, 0, 0, chunks * CHUNK - x.shape[2]), value=fill).unflatten(2, (chunks, CHUNK))
