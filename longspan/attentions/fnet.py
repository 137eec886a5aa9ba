"""FNet: tokens are mixed by a Fourier transform over length and width, with nothing to learn.

    y = Re(DFT_length(DFT_width(x)))

unnormalised, on the whole width of the model: no heads, no projections. Padded tokens count as zeros. Every output
depends on the size of the transform, so it is `max_length` if given: then padding a row changes nothing. Otherwise the
size is the length of the current batch. Paper: arXiv:2105.03824. Departs from the paper in: padding is zeroed.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.kernels.precision import at_least_single


class FNet(Attention):
    meta = AttentionMeta(
        title="FNet",
        paper="arXiv:2105.03824",
        family="mixing",
        cost="n log n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        length_bound=True,
        places="positions",
        remark="Has no parameters and no heads; the transform has the size max_length where that is given.",
    )

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        x, mask = self._source(x, context, mask, context_mask)
        self._check_room(x.shape[1], self.max_length, "tokens")
        if mask is not None:
            x = x.masked_fill(~mask[:, :, None], 0)
        y = _Transform.apply(x, x.shape[1] if self.max_length is None else self.max_length)
        assert isinstance(y, Tensor)
        return y


class _Transform(torch.autograd.Function):
    """The matrix is symmetric, even with rows padded and truncated, so the backward pass is the transform itself."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "b n d"], size: int) -> Float[Tensor, "b n d"]:
        ctx.size = size
        return transform(x, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Transform.apply(gradients[0], ctx.size), None


def transform(x: Float[Tensor, "b n d"], size: int) -> Float[Tensor, "b n d"]:
    """The first n tokens of the transform of x, padded with zeros to `size` tokens.

    x is real, so half of the width suffices: the transform at (-k, -j) is the conjugate of that at (k, j).
    """
    n, d = x.shape[1:]
    half = torch.fft.rfft2(at_least_single(x), s=(size, d), dim=(1, 2)).real  # not available in half precision
    mirrored = half[:, :, 1 : (d + 1) // 2]
    y = x.new_empty(x.shape)
    y[:, :, : d // 2 + 1] = half[:, :n]
    y[:, :1, d // 2 + 1 :] = mirrored[:, :1].flip(2)
    y[:, 1:, d // 2 + 1 :] = mirrored[:, size - n + 1 :].flip(1, 2)
    return y
