"""Running softmax by chunks that are halved again and again, so that every exponent is at most 0.

The unnormalised weight of token s at moment t in slot f is exp(a_sf - m_tf), m_t the maximum up to t. It splits at any
moment u between them, s <= u <= t, into two factors that are both at most 1:

    exp(a_s - m_t) = exp(a_s - m_u) exp(m_u - m_t)

so neither can overflow, and the product underflows only where the weight itself does. A chunk is halved: the right half
sees the left half through u = the end of the left half, which is a plain matrix product; then both halves are treated
alike, down to single tokens. Chunks see one another through u = the ends of chunks and one carried state each.

Time O(n C (r + e) + n r e), memory O(n (r log C + C + e) + (n / C) r e) for chunks of C tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.chunk_states import before, fading_sum

CHUNK = 64


def scores(
    q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], a: Float[Tensor, "b h t r"]
) -> Float[Tensor, "b h t r"]:
    length = q.shape[2]
    if length == 0:
        return a
    q, k, weights = _in_chunks(q), _in_chunks(k), Weights.of(_in_chunks(a, fill=-torch.inf))
    total = weights.own * (q * k).sum(dim=-1, keepdim=True)
    total = total + weights.from_start * (q @ before(weights.state(k)).mT)
    for left, right in weights.halves:
        _, q_right = _halve(q, left.shape[-2])
        k_left, _ = _halve(k, left.shape[-2])
        total = total + _onto_right(right * (q_right @ k_left.mT @ left))
    return _in_a_row(total / weights.sum(), length)


def read(
    p: Float[Tensor, "b h t r"], a: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"]
) -> Float[Tensor, "b h t e"]:
    length = p.shape[2]
    if length == 0:
        return v
    p, v, weights = _in_chunks(p), _in_chunks(v), Weights.of(_in_chunks(a, fill=-torch.inf))
    p = p / weights.sum()
    y = (p * weights.own).sum(dim=-1, keepdim=True) * v
    y = y + (p * weights.from_start) @ before(weights.state(v))
    for left, right in weights.halves:
        _, p_right = _halve(p, left.shape[-2])
        v_left, _ = _halve(v, left.shape[-2])
        y = y + _onto_right((p_right * right) @ left.mT @ v_left)
    return _in_a_row(y, length)


@dataclass(frozen=True)
class Weights:
    """The weights exp(a_s - m_t) of a chunked sequence, in factors that are all at most 1.

    The maximum carries no gradient: it cancels between a sum and its normaliser.
    """

    own: Float[Tensor, "b h g c r"]  # s = t
    halves: list[tuple[Tensor, Tensor]]  # s in the left and t in the right half of each piece, "b h g p half r" both
    to_end: Float[Tensor, "b h g c r"]  # from s to the end of its chunk
    from_start: Float[Tensor, "b h g c r"]  # from the end of the chunk before to t
    log_decay: Float[Tensor, "b h g r"]  # from the end of the chunk before to the end of this one

    @classmethod
    def of(cls, a: Float[Tensor, "b h g c r"]) -> "Weights":
        with torch.no_grad():
            m = rearrange(a, "b h g c r -> b h (g c) r").cummax(dim=2).values
            m = m.clamp(min=torch.finfo(a.dtype).min / 4)  # finite where all is hidden, and far below any logit
            m = rearrange(m, "b h (g c) r -> b h g c r", c=a.shape[3])
            end = m[:, :, :, -1:]
            start = torch.cat([m[:, :, :1, :1], end[:, :, :-1]], dim=2)  # nothing comes before the first chunk
        halves, half = [], a.shape[3] // 2
        while half:
            (a_left, _), (m_left, m_right) = _halve(a, half), _halve(m, half)
            middle = m_left[..., -1:, :]
            halves.append(((a_left - middle).exp(), (middle - m_right).exp()))
            half //= 2
        return cls((a - m).exp(), halves, (a - end).exp(), (start - m).exp(), (start - end)[:, :, :, 0])

    def state(self, x: Float[Tensor, "b h g c e"]) -> Float[Tensor, "b h g r e"]:
        """The weighted sum of all x up to the end of each chunk, in every slot."""
        return fading_sum(self.to_end.mT @ x, self.log_decay)

    def sum(self) -> Float[Tensor, "b h g c r"]:
        """The normaliser: at least 1, or 1 for a slot that has seen nothing (and whose weighted sum is 0)."""
        state = fading_sum(reduce(self.to_end, "b h g c r -> b h g r 1", "sum"), self.log_decay)
        total = self.own + self.from_start * before(state).mT
        for left, right in self.halves:
            total = total + _onto_right(right * left.sum(dim=-2, keepdim=True))
        return torch.where(total > 0, total, 1)


def _in_chunks(x: Float[Tensor, "b h t r"], fill: float = 0.0) -> Float[Tensor, "b h g c r"]:
    chunk = CHUNK
    while chunk // 2 >= x.shape[2]:
        chunk //= 2
    return rearrange(F.pad(x, (0, 0, 0, -x.shape[2] % chunk), value=fill), "b h (g c) r -> b h g c r", c=chunk)


def _in_a_row(x: Float[Tensor, "b h g c r"], length: int) -> Float[Tensor, "b h t r"]:
    return rearrange(x, "b h g c r -> b h (g c) r")[:, :, :length]


def _halve(x: Float[Tensor, "b h g c r"], half: int) -> tuple[Tensor, Tensor]:
    """The left and the right half of every piece of `2 * half` tokens, "b h g p half r" each."""
    left, right = rearrange(x, "b h g (p two half) r -> two b h g p half r", two=2, half=half)
    return left, right


def _onto_right(x: Float[Tensor, "b h g p d r"]) -> Float[Tensor, "b h g c r"]:
    """Something computed for the right halves, in its place among all tokens of the chunk."""
    return rearrange([torch.zeros_like(x), x], "two b h g p half r -> b h g (p two half) r")
