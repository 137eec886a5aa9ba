"""The Triton kernels as operators of torch with a gradient, which torch.compile takes into its graph unopened.

Signatures of operators are read by torch, which knows tensors but no shapes; those of `positive_features` say them.
"""

import torch
from torch import Tensor

from longspan.kernels.feature_attention.shapes import empty_like
from longspan.kernels.positive_features.reference import least

STEP = 16  # features come in multiples of it


@torch.library.custom_op("longspan::positive_features", mutates_args=())
def forward(
    x: Tensor, projection: Tensor, shift: Tensor | None, mask: Tensor | None, own: bool
) -> tuple[Tensor, Tensor]:
    """phi [b h n r], filled up with zeros, and the level of each token [b h n], which only `own` has."""
    from longspan.kernels.positive_features import triton

    x, shift = _readable(x), None if shift is None else shift.contiguous()
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return triton.features(
            x, *_halves(projection, x), shift, _bytes(mask), own, _filled(projection), least(torch.float32)
        )


@forward.register_fake
def _(x, projection, shift, mask, own):
    phi = x.new_empty(*x.shape[:3], _filled(projection))
    return phi, x.new_empty(x.shape[:3], dtype=torch.float32)


@torch.library.custom_op("longspan::positive_features_backward", mutates_args=())
def backward(dphi: Tensor, phi: Tensor, x: Tensor, projection: Tensor) -> Tensor:
    from longspan.kernels.positive_features import triton

    dphi, x, dx = _readable(dphi), _readable(x), empty_like(x, x.shape[3], x.dtype)
    with torch.cuda.device_of(x):
        triton.back(dphi, phi.contiguous(), x, _halves(projection, x)[0], dx)
    return dx


@backward.register_fake
def _(dphi, phi, x, projection):
    return empty_like(x, x.shape[3], x.dtype)


@torch.library.custom_op("longspan::largest_features", mutates_args=())
def largest(x: Tensor, projection: Tensor, mask: Tensor | None) -> Tensor:
    """The largest logarithm of each feature [b h r]; it carries no gradient."""
    from longspan.kernels.positive_features import triton

    x = _readable(x)
    with torch.cuda.device_of(x):
        return triton.largest(x, *_halves(projection, x), _bytes(mask), least(torch.float32))


@largest.register_fake
def _(x, projection, mask):
    return x.new_empty(*x.shape[:2], projection.shape[0], dtype=torch.float32)


def _filled(projection: Tensor) -> int:
    return -(-projection.shape[0] // STEP) * STEP


def _halves(projection: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """W with the scale of x in it, rounded to the type of x, and the rest."""
    exact = projection.float() / x.shape[3] ** 0.25
    rounded = exact.to(x.dtype).contiguous()
    return rounded, (exact - rounded.float()).to(x.dtype)


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _remember(ctx, inputs, output) -> None:
    x, projection, *_ = inputs
    ctx.save_for_backward(output[0], x, projection)
    ctx.set_materialize_grads(False)  # nobody differentiates the levels


def _gradients(ctx, dphi, _):
    return backward(dphi, *ctx.saved_tensors), None, None, None, None


forward.register_autograd(_gradients, setup_context=_remember)
