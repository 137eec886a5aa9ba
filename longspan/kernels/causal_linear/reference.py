"""Causal linear attention as a recurrence, token by token: the law."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def causal_linear(
    q: Float[Tensor, "b h t r"],
    k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    decay: Float[Tensor, "b h t"] | None,
) -> Float[Tensor, "b h t e"]:
    state, rows = v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), [v[:, :, :0]]
    for t in range(q.shape[2]):
        if decay is not None and t > 0:  # nothing can fade before the first token
            state = state * decay[:, :, t, None, None].exp()
        state = state + einsum(k[:, :, t], v[:, :, t], "b h r, b h e -> b h r e")
        rows.append(einsum(q[:, :, t], state, "b h r, b h r e -> b h e")[:, :, None])
    return torch.cat(rows, dim=2)
