"""SOFT as its authors released it: tokens form an image, and the inverse has the gradient of an exact one.

    y = K A+ (K^T v) + conv(v)      K_ir = exp(-|u_i - w_r|^2 / 2)      A_rs = exp(-|w_r - w_s|^2 / 2)

The tokens are the rows of an image with `columns` columns (a square image unless given). Its landmarks w come from a
convolution over ratio x ratio patches, and conv x conv filters run over the image of v. A+ comes from Newton's method,
whose gradient is taken to be -A+^T G A+^T, that of an inverse: unless the steps have converged, this is not the
derivative of what is computed. The idea (`soft`) differentiates the steps. Masks are ignored: padding is seen.

Code: fudan-zvg/SOFT, models/softmax_free_transformer.py, SoftmaxFreeAttentionKernel. Departs from it in: nothing.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.gaussian import gaussian_kernel, newton_inverse
from longspan.kernels.precision import at_least_single, without_autocast


class _Inverse(torch.autograd.Function):
    """Newton's inverse with the gradient of the exact one."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, iterations: int) -> Tensor:
        z = newton_inverse(a, iterations)
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return -z.mT @ gradients[0] @ z.mT, None


class AuthorsSOFT(Attention):
    meta = AttentionMeta(
        title="SOFT (authors)",
        paper="arXiv:2110.11945",
        family="low rank",
        cost="n^2",
        patterns=(Pattern.NONCAUSAL_SELF,),
        spatial=True,
        fidelity=True,
        remark="For pictures alone, whose landmarks grow with the number of tokens; masks are not read.",
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        ratio: int = 8,
        columns: int | None = None,
        iterations: int = 20,
        conv: int = 3,
        bias: bool = True,
        **shell: Any,
    ):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        if min(ratio, iterations, 1 if columns is None else columns) < 1:
            raise UsageError(
                f"ratio, iterations and columns must be at least 1, got {ratio}, {iterations} and {columns}."
            )
        if conv < 0 or (conv and conv % 2 == 0):
            raise UsageError(f"conv is the side of a centred filter, got {conv}; choose an odd number, or 0 for none.")
        self.ratio, self.columns, self.iterations = ratio, columns, iterations
        self.query, self.value = (nn.Linear(dim, self.inner, bias=bias) for _ in range(2))
        self.out = nn.Linear(self.inner, dim, bias=bias)
        c = self.inner // heads
        self.summarise, self.norm = nn.Conv2d(c, c, ratio, stride=ratio, bias=False), nn.LayerNorm(c)
        self.conv = nn.Conv2d(heads, heads, conv, padding=conv // 2, groups=heads, bias=False) if conv else None

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        self._source(x, context, mask, context_mask)
        return self._merge(self.attend(self._split(self.query(x)), self._split(self.value(x))))

    def attend(self, u: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        """The mechanism between the projections, in single precision or better."""
        rows, columns = self._picture(u.shape[2])
        with without_autocast(u):
            u, v = at_least_single(u) / u.shape[-1] ** 0.25, at_least_single(v)
            picture = rearrange(u, "b h (y x) c -> (b h) c y x", y=rows, x=columns)
            w = F.conv2d(picture, self.summarise.weight.to(u.dtype), stride=self.ratio)
            w = rearrange(w, "(b h) c y x -> b h (y x) c", h=self.heads)
            weight, bias = (p.to(w.dtype) for p in (self.norm.weight, self.norm.bias))
            w = F.gelu(F.layer_norm(w, w.shape[-1:], weight, bias, self.norm.eps))
            kernel, a = gaussian_kernel(u, w), gaussian_kernel(w, w)
            inverse: Any = _Inverse.apply(a, self.iterations)
            y = kernel @ (inverse @ (kernel.mT @ v))
            if self.conv is not None:
                picture = rearrange(v, "b h (y x) c -> (b c) h y x", y=rows, x=columns)
                near = F.conv2d(picture, self.conv.weight.to(v.dtype), padding="same", groups=self.heads)
                y = y + rearrange(near, "(b c) h y x -> b h (y x) c", b=len(v))
        return y

    def _picture(self, n: int) -> tuple[int, int]:
        """How many rows and columns n tokens have."""
        columns = math.isqrt(n) if self.columns is None else self.columns
        rows, rest = divmod(n, columns)
        if rest or min(rows, columns) < self.ratio or (self.columns is None and rows != columns):
            raise UsageError(
                f"authors_soft takes whole pictures of at least {self.ratio} rows and columns, got {n} tokens for "
                f"{columns} columns; say how wide they are with columns=..., or use soft."
            )
        return rows, columns
