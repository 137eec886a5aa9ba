"""The delta rule: linear attention whose memory replaces what it holds for a key, instead of adding to it.

    S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T      y_t = S_t^T q_t

`step` is one token. `delta_rule` takes a chunk at a time: what the tokens of a chunk write, u_t = beta_t (v_t -
S_{t-1}^T k_t), solves a triangular system, since u_t depends only on earlier u_s,

    u_t + beta_t sum_{s < t} (k_t . k_s) u_s = beta_t (v_t - S^T k_t)      S the memory at the start of the chunk

so that chunks are computed one after another and the tokens of each together. Time O(n (C (C + r + e) + r e)), memory
O(n (C + r + e) + (n / C) r e) for chunks of C tokens. Keys no longer than 1 keep the memory bounded. In float32 or
better.
"""

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor

CHUNK = 64


def delta_rule(
    q: Float[Tensor, "b h t r"],
    k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    beta: Float[Tensor, "b h t"],
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h r e"]]:
    """The output and the memory after all tokens; a token whose beta is 0 writes nothing."""
    length, state = v.shape[2], v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
    if length == 0:
        return v, state
    chunk = length if length < CHUNK else CHUNK  # min() would stay symbolic in a compiled graph
    chunks = -(-length // chunk)
    q, k, v, beta = (
        F.pad(x, (0, 0, 0, chunks * chunk - length)).unflatten(2, (chunks, chunk)) for x in (q, k, v, beta[..., None])
    )
    one = torch.eye(chunk, dtype=k.dtype, device=k.device)
    system = one + (beta * (k @ k.mT)).tril(-1)
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * v, beta * k], dim=-1), upper=False, unitriangular=True
    ).split([v.shape[-1], k.shape[-1]], dim=-1)
    y, parts = [], (q, k, (q @ k.mT).tril(), *solved)
    for q_g, k_g, scores, of_values, of_memory in zip(*(x.unbind(2) for x in parts), strict=True):
        u = of_values - of_memory @ state
        y.append(q_g @ state + scores @ u)
        state = state + k_g.mT @ u
    return torch.cat(y, dim=2)[:, :, :length], state


def step(
    q: Float[Tensor, "b h r"],
    k: Float[Tensor, "b h r"],
    v: Float[Tensor, "b h e"],
    beta: Float[Tensor, "b h"],
    state: Float[Tensor, "b h r e"],
) -> tuple[Float[Tensor, "b h e"], Float[Tensor, "b h r e"]]:
    held = einsum(k, state, "b h r, b h r e -> b h e")
    state = state + einsum(k, beta[..., None] * (v - held), "b h r, b h e -> b h r e")
    return einsum(q, state, "b h r, b h r e -> b h e"), state
