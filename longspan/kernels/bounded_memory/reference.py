"""Running softmax with every slot at every time step written out, and the slots as sums that decoding carries along."""

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.kernels.landmark.pieces import weighted_sums


def attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    a: Float[Tensor, "b h m r"],
    b: Float[Tensor, "b h m r"],
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    keys, values, scale = slots(a, k, causal), slots(b, v, causal), q.shape[3] ** -0.5
    if not causal:  # the same slots for all queries
        return (scale * q @ keys[:, :, 0].mT).softmax(dim=-1) @ values[:, :, 0]
    scores = einsum(scale * q, keys, "b h t c, b h t r c -> b h t r")
    return einsum(scores.softmax(dim=-1), values, "b h t r, b h t r e -> b h t e")


def mix(
    p: Float[Tensor, "b h t r"], b: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"]
) -> Float[Tensor, "b h t e"]:
    return einsum(p, slots(b, v, causal=True), "b h t r, b h t r e -> b h t e")


def slots(a: Float[Tensor, "b h m r"], x: Float[Tensor, "b h m e"], causal: bool) -> Float[Tensor, "b h t r e"]:
    """sum_s softmax_s(a_s) x_s over s <= t, or over all s for a single t; 0 where every logit is -inf."""
    logits = a[:, :, None]  # "b h t s r"
    if causal:
        visible = torch.ones(a.shape[2], a.shape[2], dtype=torch.bool, device=a.device).tril()[:, :, None]
        logits = logits.masked_fill(~visible, -torch.inf)
    seen = (logits > -torch.inf).any(dim=3, keepdim=True)
    weights = torch.softmax(logits.masked_fill(~seen, 0), dim=3).masked_fill(logits == -torch.inf, 0)
    return einsum(weights, x, "b h t s r, b h s e -> b h t r e")


def logits(
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    control_key: Float[Tensor, "c r"],
    control_value: Float[Tensor, "e r"] | None = None,
    key_mask: Bool[Tensor, "b m"] | None = None,
) -> tuple[Float[Tensor, "b h m r"], Float[Tensor, "b h m r"]]:
    """How strongly each token writes into each slot of the key and of the value memory; -inf for padding."""
    both = [k @ control_key.to(k.dtype)]
    both.append(both[0] if control_value is None else v @ control_value.to(v.dtype))
    if key_mask is not None:
        hidden = ~rearrange(key_mask, "b m -> b 1 m 1")
        both = [a.masked_fill(hidden, -torch.inf) for a in both]
    return both[0], both[1]


def pool(
    a: Float[Tensor, "b h m r"], x: Float[Tensor, "b h m c"]
) -> tuple[Float[Tensor, "b h r c_plus_1"], Float[Tensor, "b h r 1"]]:
    """Sums of x and of 1, weighted by exp(a) relative to its largest, which cancels in the mean."""
    nothing = torch.finfo(a.dtype).min / 4  # the largest logit where there is no token at all
    if a.shape[2] == 0:
        return x.new_zeros(*a.shape[:2], a.shape[3], x.shape[3] + 1), a.new_full((*a.shape[:2], a.shape[3], 1), nothing)
    largest = a.detach().amax(dim=2).clamp(min=nothing)
    weights = (a - largest[:, :, None]).exp()
    return torch.cat([weighted_sums(weights, x), weights.sum(dim=2)[..., None]], dim=-1), largest[..., None]


def merge(
    one: Tensor, largest_one: Tensor, other: Tensor, largest_other: Tensor
) -> tuple[Float[Tensor, "b h r c_plus_1"], Float[Tensor, "b h r 1"]]:
    """Two pools as one."""
    largest = torch.maximum(largest_one, largest_other)
    return one * (largest_one - largest).exp() + other * (largest_other - largest).exp(), largest


def mean(pool: Float[Tensor, "b h r c_plus_1"]) -> Float[Tensor, "b h r c"]:
    """What a slot holds: the weighted mean, or 0 if it has seen nothing."""
    weight = pool[..., -1:]
    return pool[..., :-1] / torch.where(weight > 0, weight, 1)
