"""LSTM: a recurrent network of one layer, whose gates decide what its cells keep.

    i, f, g, o = z_t + W h_(t-1)      c_t = s(f) c_(t-1) + s(i) tanh(g)      h_t = s(o) tanh(c_t)      h_0 = c_0 = 0

with s the logistic function. z is x W_x^T plus both biases, W is `recurrent`; gates lie in torch's order. In float32 or
better. `reference` defines the answer, a few operations of torch for each token; `triton` takes all tokens of a row in
one program, and rounds nothing to TF32, unlike cuDNN's `torch.nn.LSTM`. Both are behind one operator, so that
torch.compile, which refuses an `nn.LSTM`, has one graph for every length.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.dispatch import Implementation, choose
from longspan.kernels.lstm import operator
from longspan.kernels.precision import at_least_single, without_autocast

WIDEST = 64  # channels, whose matrix has to stay in registers


def lstm(
    z: Float[Tensor, "b n gates"], recurrent: Float[Tensor, "gates r"], *, impl: Implementation = "auto"
) -> Float[Tensor, "b n r"]:
    """h of every token, in the type of z.

    >>> lstm(torch.full((1, 2, 4), 99.0), torch.zeros(4, 1)).flatten()  # all gates open: tanh(1), tanh(2)
    tensor([0.7616, 0.9640])
    """
    given, z, recurrent = z.dtype, at_least_single(z), at_least_single(recurrent)
    by_triton = choose(impl, "lstm", z, _unsupported_reason(z, recurrent)) == "triton"
    with without_autocast(z):
        return operator.forward(z, recurrent, by_triton)[0].to(given)


def _unsupported_reason(z: Float[Tensor, "b n gates"], recurrent: Float[Tensor, "gates r"]) -> str:
    if (z.dtype, recurrent.dtype) != (torch.float32, torch.float32):
        return f"it takes float32 or less, got {z.dtype} and {recurrent.dtype}"
    if recurrent.shape[1] > WIDEST:
        return f"it may be {WIDEST} channels wide, got {recurrent.shape[1]}"
    return "" if z.numel() else "there are no tokens"
