"""A cache of keys or values while decoding: the tokens of each row, left-aligned, one more with every step."""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def append(
    tokens: Shaped[Tensor, "b h t c"], new: Shaped[Tensor, "b h c"], lengths: Int[Tensor, " b"]
) -> Shaped[Tensor, "b h t_plus_1 c"]:
    """The new token of each row behind its last one."""
    tokens = torch.cat([tokens, torch.zeros_like(new)[:, :, None]], dim=2)
    place = lengths[:, None, None, None].expand_as(new[:, :, None])
    return tokens.scatter_(2, place, new[:, :, None].to(tokens.dtype))  # in place: the tensor is new
