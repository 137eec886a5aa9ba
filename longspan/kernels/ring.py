"""A ring of the last few tokens of each row: the token at place p lies in slot p modulo the number of slots."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor


def places(last: Int[Tensor, " b"], slots: int) -> Int[Tensor, "b s"]:
    """The place of the token in each slot once the token at place `last` has come; negative where there is none."""
    return last[:, None] - (last[:, None] - torch.arange(slots, device=last.device)) % slots


def fill(tokens: Float[Tensor, "b m h c"], lengths: Int[Tensor, " b"], slots: int) -> Float[Tensor, "b h s c"]:
    """The ring after these left-aligned tokens, 0 in slots that none has reached."""
    rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
    tokens = F.pad(tokens, (0, 0, 0, 0, 1, 0))  # a zero in front stands for every token that is not there
    return rearrange(tokens[rows, places(lengths - 1, slots).clamp(min=-1) + 1], "b s h c -> b h s c")


def put(
    ring: Float[Tensor, "b h s c"], new: Float[Tensor, "b h c"], place: Int[Tensor, " b"]
) -> Float[Tensor, "b h s c"]:
    """The ring once the token at `place` has come, over the one that is too old."""
    slots = ring.shape[2]
    here = torch.arange(slots, device=ring.device) == (place % slots)[:, None]
    return torch.where(here[:, None, :, None], new[:, :, None], ring)
