"""State space: a linear recurrence of every channel by itself, for all tokens at once.

    system = Diagonal(log_a, c)                        # or DiagonalPlusRankOne(...), see systems.py
    y = state_space(x, system, skip, mask)             # y = K * x + D x, K the impulse response of the system
    state = final_state(x, system, mask)               # after the real tokens of each row
    y_t, state = state_space_step(x_t, system, skip, state)

Padding is not time: a padded token neither enters the state nor lets it fade. On a GPU the recurrence goes chunk by
chunk (`filter_chunks`: matrix products and Triton), elsewhere K is convolved with the tokens by Fourier transforms
(`filter_tokens`). `reference` defines both.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.dispatch import choose
from longspan.kernels.packing import left_align, real, real_first
from longspan.kernels.precision import at_least_single, without_autocast
from longspan.kernels.state_space import operator, systems
from longspan.kernels.state_space.systems import Chunk, Diagonal, DiagonalPlusRankOne, long_convolution

LARGEST_STATE = 128  # numbers, whose matrix has to stay on chip

System = Diagonal | DiagonalPlusRankOne


def state_space(
    x: Float[Tensor, "b n d"],
    system: System,
    skip: Float[Tensor, "c d"],
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    gelu: bool = False,
) -> Float[Tensor, "b n c_times_d"]:
    """All channels of all features, after GELU where wanted, in single precision or better; 0 at padded positions."""
    dtype = chunk_type(x, 2 * system.log_a.shape[1])
    with without_autocast(x):
        if dtype is not None:
            return filter_chunks(x, system.chunk(skip, systems.LENGTH, dtype), mask, gelu=gelu)
        kernel = system.kernel(x.shape[1])
        past, future = kernel[: len(skip)], kernel[len(skip) :]
        y = filter_tokens(x, past, future if len(future) else None, skip, mask)
        return F.gelu(y) if gelu else y


def final_state(
    x: Float[Tensor, "b n d"], system: System, mask: Bool[Tensor, "b n"] | None = None
) -> Float[Tensor, "b d s 2"]:
    """The state after the real tokens of each row, as pairs of real and imaginary part."""
    with without_autocast(x):
        return torch.view_as_real(system.state(*left_align(at_least_single(x), mask)))


def state_space_step(
    x_t: Float[Tensor, "b d"],
    system: System,
    skip: Float[Tensor, "c d"],
    state: Float[Tensor, "b d s 2"],
    *,
    gelu: bool = False,
) -> tuple[Float[Tensor, "b c_times_d"], Float[Tensor, "b d s 2"]]:
    """`state_space` for one more token, and the state after it."""
    with without_autocast(x_t):
        u = at_least_single(x_t)
        y, s = system.step(u, torch.view_as_complex(state))
        y = rearrange(y + skip * u[:, None], "b c d -> b (c d)")
        return F.gelu(y) if gelu else y, torch.view_as_real(s)


def filter_tokens(
    x: Float[Tensor, "b n d"],
    kernel: Float[Tensor, "c d n"],
    reverse: Float[Tensor, "c d n"] | None,
    skip: Float[Tensor, "c d"],
    mask: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b n c_times_d"]:
    """kernel * x + skip x along the real tokens; the reverse kernel sees the tokens after the current one."""
    u, _ = left_align(at_least_single(x), mask)
    u = rearrange(u, "b n d -> b 1 d n")
    y = long_convolution(u, kernel, reverse) + rearrange(skip, "c d -> c d 1") * u
    y = rearrange(y, "b c d n -> b n (c d)")
    if mask is None:
        return y
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)] * mask[..., None]  # back to where the tokens were


def chunk_type(x: Float[Tensor, "b n d"], states: int) -> torch.dtype | None:
    """The type in which `filter_chunks` should multiply these tokens, that of other products here; None if it cannot.

    `states` is the number of real numbers in a state.
    """
    kind = x.device.type
    if choose("auto", "state_space", x, _unsupported_reason(x, states)) != "triton":
        return None
    cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if cast else x.dtype


def filter_chunks(
    x: Float[Tensor, "b n d"], chunk: Chunk, mask: Bool[Tensor, "b n"] | None = None, *, gelu: bool = False
) -> Float[Tensor, "b n c_times_d"]:
    """A recurrence chunk by chunk along the real tokens, with optional GELU; 0 at padded positions.

    Products are of numbers in the type of the chunk, summed in float32; the state goes from chunk to chunk in float32.
    """
    diagonal = chunk.across.is_complex()
    choose("triton", "state_space", x, _unsupported_reason(x, chunk.across.shape[1] * (2 if diagonal else 1)))
    across = torch.view_as_real(chunk.across.to(torch.complex64)) if diagonal else chunk.across.float()
    order, places = (None, None) if mask is None else _permutation(mask)
    return operator.forward(x.to(chunk.read.dtype), chunk.read, chunk.write, across, order, places, diagonal, gelu)[0]


def _permutation(mask: Bool[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Where the real tokens of a row are, and the position of each among them; -1 for none."""
    order = real_first(mask)
    order = order.masked_fill(~real(mask.sum(dim=1), mask.shape[1]), -1)
    return order.int(), (mask.cumsum(dim=1) - 1).masked_fill(~mask, -1).int()


def _unsupported_reason(x: Float[Tensor, "b n d"], states: int) -> str:
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes float32 or bfloat16, got {x.dtype}"
    if states > LARGEST_STATE:
        return f"a state may have {LARGEST_STATE} numbers, got {states}"
    return "" if x.numel() else "there are no tokens"
