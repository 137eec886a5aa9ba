"""Weights within a chunk by halving it again and again, so that every exponent is at most 0: on any device.

A chunk is halved: the right half sees the left half through u = the end of the left half, which is a plain matrix
product; then both halves are treated alike, down to pieces of a few tokens, whose weights are written out. What goes in
or comes out for all pairs of a chunk is cut up as the chunk is, so that nothing wider than that is ever cut or joined.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

PIECE = 4


@dataclass(frozen=True)
class Halves:
    """The weights exp(a_s - m_t) for s <= t in the same chunk, in factors that are all at most 1."""

    pieces: Float[Tensor, "b h g p piece piece r"]  # t and s <= t in the same piece, 0 for later s
    halves: list[tuple[Tensor, Tensor]]  # s in the left and t in the right half, "b h g p half r" both, longest first

    @classmethod
    def of(cls, a: Float[Tensor, "b h g c r"], m: Float[Tensor, "b h g c r"]) -> "Halves":
        piece = min(PIECE, a.shape[3])
        halves, half = [], a.shape[3] // 2
        while half >= piece:
            (a_left, _), (m_left, m_right) = _halve(a, half), _halve(m, half)
            middle = m_left[..., -1:, :]
            halves.append(((a_left - middle).exp(), (middle - m_right).exp()))
            half //= 2
        s, t = (rearrange(x, "b h g (p piece) r -> b h g p piece r", piece=piece) for x in (a, m))
        later = torch.ones(piece, piece, dtype=torch.bool, device=a.device).triu(1)[..., None]
        return cls((s[..., None, :, :] - t[..., :, None, :]).masked_fill(later, -torch.inf).exp(), halves)

    def within(self, x: Float[Tensor, "b h g c c"]) -> tuple[Float[Tensor, "b h g c r"], Float[Tensor, "b h g c r"]]:
        """sum_{s <= t} x_ts exp(a_s - m_t), and the sums without x."""
        x, parts = x[:, :, :, None], []
        for left, right in self.halves:
            first, below, second = _quarter(x)
            parts.append(right * (below @ left))
            x = torch.stack([first, second], dim=4).flatten(3, 4)
        total = (x[..., None] * self.pieces).sum(dim=-2)
        return self._joined(total, parts), self.sums()

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

    def sums(self) -> Float[Tensor, "b h g c r"]:
        """sum_{s <= t} exp(a_s - m_t)."""
        parts = [right * left.sum(dim=-2, keepdim=True) for left, right in self.halves]
        return self._joined(self.pieces.sum(dim=-2), parts)

    def _joined(self, total: Float[Tensor, "b h g p piece r"], parts: list[Tensor]) -> Float[Tensor, "b h g c r"]:
        """Pieces put together to whole chunks, with what the right halves get from the left ones added."""
        for part in reversed(parts):
            left, right = total.unflatten(3, (-1, 2)).unbind(dim=4)
            total = torch.cat([left, right + part], dim=4)
        return total[:, :, :, 0]


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
