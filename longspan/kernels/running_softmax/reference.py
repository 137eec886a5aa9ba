"""Running softmax with every slot of every moment written out: the law."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def slots(a: Float[Tensor, "b h t r"], x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t r e"]:
    """P_t = sum_{s <= t} softmax_{s <= t}(a_s) x_s, for every slot; 0 where every logit is -inf."""
    visible = torch.ones(a.shape[2], a.shape[2], dtype=torch.bool, device=a.device).tril()[:, :, None]
    logits = a[:, :, None].masked_fill(~visible, -torch.inf)  # "b h t s r"
    seen = (logits > -torch.inf).any(dim=3, keepdim=True)
    weights = torch.softmax(logits.masked_fill(~seen, 0), dim=3).masked_fill(logits == -torch.inf, 0)
    return einsum(weights, x, "b h t s r, b h s e -> b h t r e")


def scores(
    q: Float[Tensor, "b h t c"], k: Float[Tensor, "b h t c"], a: Float[Tensor, "b h t r"]
) -> Float[Tensor, "b h t r"]:
    return einsum(q, slots(a, k), "b h t c, b h t r c -> b h t r")


def read(
    p: Float[Tensor, "b h t r"], a: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"]
) -> Float[Tensor, "b h t e"]:
    return einsum(p, slots(a, v), "b h t r, b h t r e -> b h t e")
