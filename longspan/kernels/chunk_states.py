"""Chunk states: running sums that fade, one state per chunk, for kernels that cut a sequence into chunks."""

import torch
from jaxtyping import Float
from torch import Tensor


def fading_sum(
    update: Float[Tensor, "b h g r e"], log_decay: Float[Tensor, "b h g #r"] | None
) -> Float[Tensor, "b h g r e"]:
    """S_g = exp(log_decay_g) S_{g-1} + update_g, in a logarithmic number of steps.

    Each step adds to every state the one that lies 1, 2, 4, 8... chunks back and covers as many chunks.
    """
    if log_decay is None:
        return update.cumsum(dim=2)
    total, reach = update, 1
    while reach < update.shape[2]:
        faded = log_decay[:, :, reach:, :, None].exp() * total[:, :, :-reach]
        total = torch.cat([total[:, :, :reach], total[:, :, reach:] + faded], dim=2)
        log_decay = torch.cat([log_decay[:, :, :reach], log_decay[:, :, reach:] + log_decay[:, :, :-reach]], dim=2)
        reach *= 2
    return total


def before(state: Float[Tensor, "b h g r e"]) -> Float[Tensor, "b h g r e"]:
    """The state each chunk finds: that of the chunk before it, 0 for the first."""
    return torch.cat([torch.zeros_like(state[:, :, :1]), state[:, :, :-1]], dim=2)
