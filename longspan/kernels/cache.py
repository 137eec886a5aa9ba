"""Keys or values while decoding: a cache that grows with every step, and a ring of the last few tokens.

A cache holds the tokens of each row left-aligned. In a ring the token at position p lies in slot p modulo the slots.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor


def append(
    tokens: Shaped[Tensor, "b h t c"], new: Shaped[Tensor, "b h c"], lengths: Int[Tensor, " b"]
) -> Shaped[Tensor, "b h t_plus_1 c"]:
    """The cache with the new token of each row after its last one."""
    tokens = torch.cat([tokens, torch.zeros_like(new)[:, :, None]], dim=2)
    place = lengths[:, None, None, None].expand_as(new[:, :, None])
    return tokens.scatter_(2, place, new[:, :, None].to(tokens.dtype))  # in place: the tensor is new


def fill_ring(tokens: Float[Tensor, "b h m c"], lengths: Int[Tensor, " b"], slots: int) -> Float[Tensor, "b h s c"]:
    """The ring after these left-aligned tokens, 0 in slots that none has reached."""
    rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
    tokens = F.pad(tokens, (0, 0, 1, 0)).transpose(1, 2)  # a zero in front stands in for every missing token
    return tokens[rows, ring_positions(lengths - 1, slots).clamp(min=-1) + 1].transpose(1, 2)


def put_in_ring(
    ring: Float[Tensor, "b h s c"], new: Float[Tensor, "b h c"], position: Int[Tensor, " b"]
) -> Float[Tensor, "b h s c"]:
    """The ring with the token at `position` in place of the oldest one."""
    slots = ring.shape[2]
    here = torch.arange(slots, device=ring.device) == (position % slots)[:, None]
    return torch.where(here[:, None, :, None], new[:, :, None], ring)


def ring_positions(last: Int[Tensor, " b"], slots: int) -> Int[Tensor, "b s"]:
    """The position of the token in each slot when the one at `last` is the newest; negative where there is none."""
    return last[:, None] - (last[:, None] - torch.arange(slots, device=last.device)) % slots
