"""Running softmax with every slot of every moment written out."""

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor


def attend(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    a: Float[Tensor, "b h m r"],
    b: Float[Tensor, "b h m r"],
    causal: bool,
) -> Float[Tensor, "b h n e"]:
    keys, values, scale = slots(a, k, causal), slots(b, v, causal), q.shape[3] ** -0.5
    if not causal:  # one moment for all queries
        return (scale * q @ keys[:, :, 0].mT).softmax(dim=-1) @ values[:, :, 0]
    scores = einsum(scale * q, keys, "b h t c, b h t r c -> b h t r")
    return einsum(scores.softmax(dim=-1), values, "b h t r, b h t r e -> b h t e")


def slots(a: Float[Tensor, "b h m r"], x: Float[Tensor, "b h m e"], causal: bool) -> Float[Tensor, "b h t r e"]:
    """sum_s softmax_s(a_s) x_s over s <= t, or over all s at the one moment there is; 0 where every logit is -inf."""
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
