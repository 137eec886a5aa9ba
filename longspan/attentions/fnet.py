"""FNet: tokens are mixed by a Fourier transform over length and width, with nothing to learn.

    y = Re(DFT_length(DFT_width(x)))

unnormalised, on the whole width of the model: no heads, no projections. Padded tokens count as zeros. The size of the
transform decides every output, so it is `max_length` where that is given: then padding a row changes nothing. Without
it the size is the length of the batch at hand. Paper: arXiv:2105.03824. Departs from the paper in: padding is zeroed.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attentions.base import Attention, AttentionMeta, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import at_least_single


class FNet(Attention):
    meta = AttentionMeta(
        title="FNet",
        paper="arXiv:2105.03824",
        family="mixing",
        cost="n log n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        length_bound=True,
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
        n = x.shape[1]
        size = n if self.max_length is None else self.max_length
        if n > size:
            raise UsageError(f"This fnet transforms at most {size} tokens, got {n}; raise max_length or cut the input.")
        given = x.dtype
        if mask is not None:
            x = x.masked_fill(~mask[:, :, None], 0)
        y = torch.fft.fft2(at_least_single(x), s=(size, x.shape[2])).real  # there is no transform in half precision
        return y[:, :n].to(given)
