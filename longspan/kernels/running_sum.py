"""Running sums along rows so long that they are computed in chunks side by side, plain or fading.

A GPU scans a row token by token, for all channels at once. Cut into chunks there are many short rows, and what comes
before each chunk is a running sum again, over the sums of chunks.
"""

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor

CHUNK = 64
GROUP = 16  # chunks whose states are summed by one matrix product


def running_sum(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    """The sum of all tokens up to each."""
    n = x.shape[2]
    if n <= CHUNK:
        return x.cumsum(dim=2)
    count = -(-n // CHUNK)
    missing = count * CHUNK - n
    chunks = (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (count, CHUNK))
    found = before(running_sum(chunks.sum(dim=3))[..., None, :])
    return (chunks.cumsum(dim=3) + found).flatten(2, 3)[:, :, :n]


def fading_sum(
    update: Float[Tensor, "b h g r e"], log_decay: Float[Tensor, "b h g #r"] | None
) -> Float[Tensor, "b h g r e"]:
    """S_g = exp(log_decay_g) S_{g-1} + update_g, one state per chunk, in a logarithmic number of steps.

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


def rescaled_sum(update: Float[Tensor, "b h g r e"], lse: Float[Tensor, "b h g r"]) -> Float[Tensor, "b h g r e"]:
    """S_g = sum_{f <= g} exp(lse_f - lse_g) update_f, for lse that never fall and carry no gradient.

    Groups of chunks are summed within themselves by a matrix product; what comes before a group is such a sum again,
    over the ends of groups.
    """
    chunks = update.shape[2]
    group = chunks if chunks < GROUP else GROUP
    groups = -(-chunks // group)
    missing = groups * group - chunks
    u = F.pad(update, (0, 0, 0, 0, 0, missing)).unflatten(2, (groups, group))
    top = F.pad(lse, (0, 0, 0, missing), value=torch.finfo(lse.dtype).max).unflatten(2, (groups, group))
    later = torch.ones(group, group, dtype=torch.bool, device=lse.device).triu(1)[..., None]
    fade = (top[:, :, :, None] - top[:, :, :, :, None]).masked_fill(later, -torch.inf).exp()
    total = einsum(fade, u, "b h k i j r, b h k j r e -> b h k i r e")
    if chunks > group:
        end = top[:, :, :, -1]
        start = torch.cat([top[:, :, :1, 0], end[:, :, :-1]], dim=2)
        found = before(rescaled_sum(total[:, :, :, -1], end))
        total = total + (start[:, :, :, None] - top).exp()[..., None] * found[:, :, :, None]
    return total.flatten(2, 3)[:, :, :chunks]


def before(state: Float[Tensor, "b h g r e"]) -> Float[Tensor, "b h g r e"]:
    """The state each chunk starts from: that of the chunk before it, 0 for the first."""
    return torch.cat([torch.zeros_like(state[:, :, :1]), state[:, :, :-1]], dim=2)
