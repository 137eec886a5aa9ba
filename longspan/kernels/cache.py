"""Key and value caches for decoding: the tokens of each row, left-aligned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def append(
    tokens: Float[Tensor, "b h t c"], new: Float[Tensor, "b h c"], lengths: Int[Tensor, " b"]
) -> Float[Tensor, "b h t_plus_1 c"]:
    """The cache with the new token of each row after its last one."""
    tokens = torch.cat([tokens, torch.zeros_like(new)[:, :, None]], dim=2)
    place = lengths[:, None, None, None].expand_as(new[:, :, None])
    return tokens.scatter_(2, place, new[:, :, None].to(tokens.dtype))  # in place: the concatenated tensor is new
