"""Reformer as Long Range Arena released it: logits c times too large, and heads scrambled with positions.

    z = x W_qk      v = x W_v      bucket(i) = argmax [z_i R, -z_i R]      R [c, buckets / 2] Gaussian
    y_i = sum_{j in V(i)} p_ij v_j      p_i = softmax_{j in V(i)}(sqrt(c) z_i . z_j)

The idea (`reformer`) is attention among tokens of one bucket. The release pads the row with zeros to a multiple of
`buckets`, by `buckets` more when it is already a multiple, and counts the zeros as tokens. Sorted by bucket and
position, the row is cut into `buckets` chunks, which thus grow with the length, and V(i) is the chunk of i and the
chunk before it (the last one for the first), whatever buckets they contain, i itself included. Then the result [heads,
length, c] is read as [length, heads * c] without transposing and cut to n rows, so a row of the output holds several
tokens of one head. There is no output projection.

Logits are multiplied by sqrt(c) instead of divided, keys are not normalised, masks and attention dropout are ignored,
and R is the same for all heads, layers and steps, from a fixed seed. Queries and values are as wide as the tokens,
whatever `inner` says. The time is quadratic in the length.

Code: google-research/long-range-arena, models/reformer. Departs from it in: R is drawn with torch's generator, not
JAX's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single, without_autocast


class LRAReformer(Attention):
    meta = AttentionMeta(
        title="Reformer (LRA)",
        paper="arXiv:2011.04006",
        family="hashing",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        fidelity=True,
        remark="Multiplies logits by sqrt(c), ignores masks, and mixes heads with places; it has no output map.",
    )

    rotations: Float[Tensor, "c half"]

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, buckets: int = 10, bias: bool = True, **shell: Any):
        super().__init__(dim, heads, pattern, bias=bias, **{**shell, "inner": None})
        if buckets < 2 or buckets % 2:
            raise UsageError(
                f"Buckets come in pairs of opposite directions, got buckets={buckets}; choose an even number."
            )
        self.buckets = buckets
        self.query = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        generator = torch.Generator().manual_seed(0)
        rotations = torch.randn(dim // heads, buckets // 2, generator=generator, device="cpu")
        self.register_buffer("rotations", rotations.to(self.query.weight.device))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        n = x.shape[1]
        padded = F.pad(x, (0, 0, 0, self.buckets - n % self.buckets))
        z, v = (rearrange(u, "b n (h c) -> b h n c", h=self.heads) for u in (self.query(padded), self.value(padded)))
        y = self.attend(z, v)
        return y.reshape(padded.shape)[:, :n].to(x.dtype)

    def attend(self, z: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        """Attention within chunks of the sorted tokens, returned in the original order."""
        order = self.hash(z).argsort(dim=-1, stable=True)[..., None].expand_as(z)
        z, v = (rearrange(u.gather(2, order), "b h (g s) c -> (b h) g s c", g=self.buckets) for u in (z, v))
        k, values = (torch.cat([u, u.roll(1, dims=1)], dim=2) for u in (z, v))
        y = F.scaled_dot_product_attention(z, k, values, scale=z.shape[-1] ** 0.5)
        y = rearrange(y, "(b h) g s c -> b h (g s) c", h=self.heads)
        return torch.zeros_like(y).scatter(2, order, y)

    def hash(self, z: Float[Tensor, "b h n c"]) -> Int[Tensor, "b h n"]:
        with torch.no_grad(), without_autocast(z):
            z = at_least_single(z)
            rotated = z @ self.rotations.to(z.dtype)
            return torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
