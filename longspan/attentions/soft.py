"""SOFT, softmax-free attention: a Gaussian kernel of one vector for query and key, approximated from a few landmarks.

    y = K A+ (K^T v) + conv(v)      K_ir = exp(-|u_i - w_r|^2 / 2)      A_rs = exp(-|w_r - w_s|^2 / 2)

with u = x W / c^(1/4), for queries and keys alike, which is why there is neither causal nor cross attention. The
landmarks are a strided convolution, w = GELU(LN(sum_s C_s m_{r ratio + s})), over the `ratio` means m of each of
`landmarks` segments of the row. A row of at most landmarks x ratio tokens uses the tokens themselves in place of means,
which is the plain convolution. A+ comes from `iterations` steps of Newton's method on A' = A + 0.01 I:

    Z <- 2 Z - Z A' Z      Z_0 = 1.8 A' / (largest sum of a row of A)^2

`conv` > 0 adds a depth-wise convolution of v along the tokens, with that many taps, one filter per head. Rows of y are
not normalised: they grow with the length. Everything is computed in single precision or better. A layer has d^2 + d
fewer parameters than softmax attention (no keys), and ratio c^2 + 2 c + heads conv more.

Paper: arXiv:2110.11945. Departs from the paper in: tokens form a row, not an image, and the number of landmarks is
fixed, not the stride; padding does not count as tokens; gradients go through the steps of Newton's method, where the
authors' code (`authors_soft`) uses those of an exact inverse.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern, centred_conv
from longspan.core.errors import UsageError
from longspan.kernels.gaussian import gaussian_kernel, newton_inverse
from longspan.kernels.landmark.pieces import weighted_sums
from longspan.kernels.packing import left_align, real
from longspan.kernels.pooling import segment_means
from longspan.kernels.precision import at_least_single, without_autocast


class SOFT(Attention):
    meta = AttentionMeta(
        title="SOFT",
        paper="arXiv:2110.11945",
        family="low rank",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        remark="Outputs grow with the length, since no row of the kernel is normalised.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        landmarks: int = 64,
        ratio: int = 4,
        iterations: int = 20,
        conv: int = 3,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if min(landmarks, ratio, iterations) < 1:
            raise UsageError(
                f"landmarks, ratio and iterations must be at least 1, got {landmarks}, {ratio} and {iterations}."
            )
        self.landmarks, self.ratio, self.iterations = landmarks, ratio, iterations
        self.query, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(2))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        c = self.inner // heads
        self.summarise, self.norm = nn.Conv1d(c, c, ratio, stride=ratio, bias=False), nn.LayerNorm(c)
        self.conv = centred_conv(heads, conv)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        aligned, lengths = left_align(x, mask)  # so that padding takes up no positions
        tokens = None if mask is None else real(lengths, x.shape[1])
        y = self.attend(self._split(self.query(aligned)), self._split(self.value(aligned)), tokens)
        if mask is not None:
            place = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, None, :, None]
            y = y.take_along_dim(place, dim=2).masked_fill(~mask[:, None, :, None], 0)
        return self._merge(y)

    def attend(
        self, u: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b h n c"]:
        """The mechanism between the projections, in single precision or better."""
        with without_autocast(u):
            u, v = at_least_single(u) / u.shape[-1] ** 0.25, at_least_single(v)
            if mask is not None:
                u, v = (t.masked_fill(~mask[:, None, :, None], 0) for t in (u, v))
            w, exists = self._summaries(u, mask)
            kernel, a = gaussian_kernel(u, w), gaussian_kernel(w, w)
            if exists is not None:  # an empty landmark is seen by none; its row of A is that of the identity
                kernel = kernel.masked_fill(~exists[:, None, None], 0)
                pairs = exists[:, None, :, None] & exists[:, None, None]
                a = torch.where(pairs, a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))
            y = kernel @ (newton_inverse(a, self.iterations) @ weighted_sums(kernel, v))
            if self.conv is not None:
                y = y + F.conv2d(v, self.conv.weight.to(v.dtype), padding="same", groups=self.heads)
        return y

    def _summaries(
        self, u: Float[Tensor, "b h n c"], mask: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "b r"] | None]:
        """The landmarks, and which of them hold a token (None without a mask: all)."""
        count = min(self.landmarks, -(-u.shape[2] // self.ratio))
        means, occupied = segment_means(u, count * self.ratio, mask)
        means = rearrange(means, "b h (r s) c -> b h r s c", s=self.ratio)
        w = einsum(means, self.summarise.weight.to(means.dtype), "b h r s i, o i s -> b h r o")
        weight, bias = (p.to(w.dtype) for p in (self.norm.weight, self.norm.bias))
        w = F.gelu(F.layer_norm(w, w.shape[-1:], weight, bias, self.norm.eps))
        return w, None if mask is None else rearrange(occupied, "b (r s) -> b r s", s=self.ratio).any(dim=2)
