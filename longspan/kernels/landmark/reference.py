"""Landmark attention with all weights written out. The many are cut into pieces, which keep a GPU busy."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.landmark.pieces import in_pieces
from longspan.kernels.precision import at_least_single

FLOOR = 1e-8  # of the second factor


def landmark_pool(
    q: Float[Tensor, "b h r c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    key_mask: Bool[Tensor, "b m"] | None,
    key_norm: float,
    step: int,
) -> tuple[Float[Tensor, "b h r e"], Float[Tensor, "b h r"]]:
    many, k, v = k, at_least_single(k), at_least_single(v)
    if key_mask is not None:
        k, v = (u.masked_fill(~key_mask[:, None, :, None], 0) for u in (k, v))
    k, v = in_pieces(k), in_pieces(v)
    scores = q[:, :, None] @ k.mT  # [b h g r s]
    if key_norm:
        scores = scores - key_norm * k.square().sum(dim=-1)[..., None, :]
    hidden = None if key_mask is None else ~in_pieces(key_mask[:, None])[..., None, :]
    if step:
        token, last = (torch.arange(u.shape[2], device=q.device) for u in (many, q))
        ahead = in_pieces(token[None, None])[..., None, :] > step * last[:, None]  # [1 1 g r s]
        hidden = ahead if hidden is None else hidden | ahead
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    largest = scores.detach().amax(dim=(2, 4), keepdim=True)
    weights = (scores - largest).exp()
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0)
    total = weights.sum(dim=(2, 4))
    seen = total > 0
    total = torch.where(seen, total, 1)
    lse = torch.where(seen, total.log() + largest[:, :, 0, :, 0], 0)
    return (weights @ v).sum(dim=2) / total[..., None], lse


def landmark_attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h r c"],
    v: Float[Tensor, "b h r e"],
    shift: Float[Tensor, "b h r"] | None,
    center: Float[Tensor, "b h r c"] | None,
    base: Float[Tensor, "b h r"] | None,
    query_mask: Bool[Tensor, "b n"] | None,
    beta: float,
) -> Float[Tensor, "b h n e"]:
    dtype, q = q.dtype, at_least_single(q)
    q = q if query_mask is None else q.masked_fill(~query_mask[:, None, :, None], 0)
    q, hidden = in_pieces(q), None
    logits = q @ k[:, :, None].mT  # [b h g s r]
    if shift is not None:
        shift = rearrange(shift, "b h r -> b h 1 1 r")
        hidden = shift.isneginf()
        logits = logits + shift.masked_fill(hidden, 0)
    weights = _softmax(logits, hidden)
    if center is not None and base is not None:
        t = _softmax(q @ center[:, :, None].mT, hidden)
        weights = weights * (rearrange(base, "b h r -> b h 1 1 r") + beta * t).clamp(min=FLOOR)
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1)
    return (weights @ v[:, :, None]).flatten(2, 3).to(dtype)


def _softmax(
    logits: Float[Tensor, "b h g s r"], hidden: Bool[Tensor, "b h 1 1 r"] | None
) -> Float[Tensor, "b h g s r"]:
    """0 for hidden keys, also where all are."""
    if hidden is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1).masked_fill(hidden, 0)
