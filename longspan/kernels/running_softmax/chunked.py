"""Running softmax by chunks that are halved again and again, so that every exponent is at most 0.

The unnormalised weight of token s at moment t in slot f is exp(a_sf - m_tf), m_t the maximum up to t. It splits at any
moment u between them, s <= u <= t, into two factors that are both at most 1:

    exp(a_s - m_t) = exp(a_s - m_u) exp(m_u - m_t)

so neither can overflow, and the product underflows only where the weight itself does. A chunk is halved: the right half
sees the left half through u = the end of the left half, which is a plain matrix product; then both halves are treated
alike, down to pieces of a few tokens, whose weights are written out. Chunks see one another through u = the ends of
chunks and one carried state each.

Products of queries and keys are taken once for a whole chunk and then cut up as the chunk is; likewise a chunk's
weights of values are put together first, so that only numbers of [C, C] and of slots are ever cut or joined.

Time O(n C (r + e) + n r e), memory O(n (r log C + C + e) + (n / C) r e) for chunks of C tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.chunk_states import before, levelled_sum

CHUNK = 64
PIECE = 4


def scores(
    q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], a: Float[Tensor, "b h t r"]
) -> Float[Tensor, "b h t r"]:
    length = q.shape[2]
    if length == 0:
        return a
    q, k, weights = _in_chunks(q), _in_chunks(k), Weights.of(_in_chunks(a, fill=-torch.inf))
    total = weights.within(q @ k.mT) + weights.from_start * (q @ before(weights.state(k)).mT)
    return _in_a_row(total / weights.sum(), length)


def read(
    p: Float[Tensor, "b h t r"], a: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"]
) -> Float[Tensor, "b h t e"]:
    length = p.shape[2]
    if length == 0:
        return v
    p, v, weights = _in_chunks(p), _in_chunks(v), Weights.of(_in_chunks(a, fill=-torch.inf))
    p = p / weights.sum()
    return _in_a_row(weights.over_slots(p) @ v + (p * weights.from_start) @ before(weights.state(v)), length)


@dataclass(frozen=True)
class Weights:
    """The weights exp(a_s - m_t) of a chunked sequence, in factors that are all at most 1.

    The maximum carries no gradient: it cancels between a sum and its normaliser.
    """

    pieces: Float[Tensor, "b h g p piece piece r"]  # t and s <= t in the same piece, 0 for later s
    halves: list[tuple[Tensor, Tensor]]  # s in the left and t in the right half, "b h g p half r" both, longest first
    to_end: Float[Tensor, "b h g c r"]  # from s to the end of its chunk
    from_start: Float[Tensor, "b h g c r"]  # from the end of the chunk before to t
    end: Float[Tensor, "b h g r"]  # the maximum up to the end of each chunk

    @classmethod
    def of(cls, a: Float[Tensor, "b h g c r"]) -> "Weights":
        m = _running_maximum(a.detach())
        end = m[:, :, :, -1:]
        start = torch.cat([m[:, :, :1, :1], end[:, :, :-1]], dim=2)  # nothing comes before the first chunk
        piece = min(PIECE, a.shape[3])
        halves, half = [], a.shape[3] // 2
        while half >= piece:
            (a_left, _), (m_left, m_right) = _halve(a, half), _halve(m, half)
            middle = m_left[..., -1:, :]
            halves.append(((a_left - middle).exp(), (middle - m_right).exp()))
            half //= 2
        s, t = (rearrange(x, "b h g (p piece) r -> b h g p piece r", piece=piece) for x in (a, m))
        later = torch.ones(piece, piece, dtype=torch.bool, device=a.device).triu(1)[..., None]
        pieces = (s[..., None, :, :] - t[..., :, None, :]).masked_fill(later, -torch.inf).exp()
        return cls(pieces, halves, (a - end).exp(), (start - m).exp(), end[:, :, :, 0])

    def within(self, x: Float[Tensor, "b h g c c"]) -> Float[Tensor, "b h g c r"]:
        """sum_{s <= t} x_ts exp(a_s - m_t) over the s in the chunk of t."""
        x, parts = x[:, :, :, None], []
        for left, right in self.halves:
            first, below, second = _quarter(x)
            parts.append(right * (below @ left))
            x = torch.stack([first, second], dim=4).flatten(3, 4)
        total = (x[..., None] * self.pieces).sum(dim=-2)
        return self._joined(total, parts)

    def over_slots(self, p: Float[Tensor, "b h g c r"]) -> Float[Tensor, "b h g c c"]:
        """sum_f p_tf exp(a_sf - m_tf) for s <= t in the same chunk, and 0 for later s."""
        own = p.unflatten(3, self.pieces.shape[3:5])
        x = (own[..., None, :] * self.pieces).sum(dim=-1)
        for left, right in reversed(self.halves):
            _, p_right = _halve(p, left.shape[-2])
            first, second = x.unflatten(3, (-1, 2)).unbind(dim=4)
            below = (p_right * right) @ left.mT
            upper = torch.cat([first, torch.zeros_like(first)], dim=-1)
            x = torch.cat([upper, torch.cat([below, second], dim=-1)], dim=-2)
        return x[:, :, :, 0]

    def state(self, x: Float[Tensor, "b h g c e"]) -> Float[Tensor, "b h g r e"]:
        """The weighted sum of all x up to the end of each chunk, in every slot."""
        return levelled_sum(self.to_end.mT @ x, self.end)

    def sum(self) -> Float[Tensor, "b h g c r"]:
        """The normaliser: at least 1, or 1 for a slot that has seen nothing (and whose weighted sum is 0)."""
        state = levelled_sum(reduce(self.to_end, "b h g c r -> b h g r 1", "sum"), self.end)
        parts = [right * left.sum(dim=-2, keepdim=True) for left, right in self.halves]
        total = self._joined(self.pieces.sum(dim=-2), parts) + self.from_start * before(state).mT
        return torch.where(total > 0, total, 1)

    def _joined(self, total: Float[Tensor, "b h g p piece r"], parts: list[Tensor]) -> Float[Tensor, "b h g c r"]:
        """Pieces put together to whole chunks, with what the right halves get from the left ones added."""
        for part in reversed(parts):
            left, right = total.unflatten(3, (-1, 2)).unbind(dim=4)
            total = torch.cat([left, right + part], dim=4)
        return total[:, :, :, 0]


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
    missing = -x.shape[2] % chunk
    x = F.pad(x, (0, 0, 0, missing), value=fill) if missing else x
    return rearrange(x, "b h (g c) r -> b h g c r", c=chunk)


def _in_a_row(x: Float[Tensor, "b h g c r"], length: int) -> Float[Tensor, "b h t r"]:
    return rearrange(x, "b h g c r -> b h (g c) r")[:, :, :length]


def _halve(x: Float[Tensor, "b h g c r"], half: int) -> tuple[Tensor, Tensor]:
    """The left and the right half of every piece of `2 * half` tokens, "b h g p half r" each."""
    left, right = rearrange(x, "b h g (p two half) r -> two b h g p half r", two=2, half=half)
    return left, right


def _quarter(x: Float[Tensor, "b h g p t t"]) -> tuple[Tensor, Tensor, Tensor]:
    """The upper left, the lower left and the lower right quarter of every matrix, "b h g p half half" each.

    By `unbind`, whose way back is one copy; that of a slice is a whole matrix of zeros each time.
    """
    upper, lower = rearrange(x, "b h g p (i t) (j s) -> i j b h g p t s", i=2, j=2).unbind()
    (first, _), (below, second) = upper.unbind(), lower.unbind()
    return first, below, second
