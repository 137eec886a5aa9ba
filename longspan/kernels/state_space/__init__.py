"""State space: the diagonal recurrence s_t = A s_{t-1} + u_t of many channels, for all tokens at once.

    impulse_response   K_l = 2 Re sum_n C_n A_n^l           what C reads l steps after a single pulse
    last_state         s = sum_l A^l u_(last - l)           what the recurrence remembers of a row
    filter_tokens      y = K * u + D u                      what it makes of a row while training
    filter_chunks      the same for any A, chunk by chunk   by matrix products, with a GPU and Triton

A comes as its logarithm, so that a power is the exponential of a product. Of each pair of conjugate states one is kept.
Padding is not time: a hidden token neither enters the state nor lets it fade. `reference` is the law.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from longspan.kernels.dispatch import choose
from longspan.kernels.long_convolution import long_convolution
from longspan.kernels.packing import left_align, real
from longspan.kernels.precision import at_least_single
from longspan.kernels.state_space import operator, reference
from longspan.kernels.state_space.chunks import Chunk

MOST = 128  # numbers of a state, whose matrix has to stay on chip

Impl = Literal["auto", "reference"]


def impulse_response(
    log_a: Complex[Tensor, "d n"], c: Complex[Tensor, "c d n"], length: int, *, impl: Impl = "auto"
) -> Float[Tensor, "c d t"]:
    """K_l = 2 Re sum_n C_n A_n^l for l < length, without ever storing all powers of A.

    With l = i block + j the power splits into A^(i block) A^j, so that sqrt(length) powers of each kind suffice and
    their products are summed over the states by one matrix product.
    """
    if impl == "reference":
        return reference.impulse_response(log_a, c, length)
    coarse, fine = _powers(log_a, length)
    coarse = (2 * c)[..., None] * coarse
    left = torch.cat([coarse.real, -coarse.imag], dim=2)  # Re(x y) = Re x Re y - Im x Im y
    right = torch.cat([fine.real, fine.imag], dim=1)
    response = einsum(left, right, "c d n i, d n j -> c d i j")
    return rearrange(response, "c d i j -> c d (i j)")[..., :length]


def last_state(
    log_a: Complex[Tensor, "d n"], u: Float[Tensor, "b t d"], lengths: Int[Tensor, " b"], *, impl: Impl = "auto"
) -> Complex[Tensor, "b d n"]:
    """s = sum_l A^l u_(last - l) over the first `lengths` tokens of each row."""
    if impl == "reference":
        return reference.last_state(log_a, u, lengths)
    length, dtype = u.shape[1], torch.promote_types(u.dtype, torch.complex64)
    if length == 0:
        return torch.zeros(u.shape[0], *log_a.shape, dtype=dtype, device=u.device)
    rows = torch.arange(u.shape[0], device=u.device)[:, None]
    back = (lengths[:, None] - 1 - torch.arange(length, device=u.device)).clamp(min=0)
    newest_first = u[rows, back] * real(lengths, length)[..., None]
    coarse, fine = (power.to(dtype) for power in _powers(log_a, length))
    blocks = F.pad(newest_first, (0, 0, 0, coarse.shape[2] * fine.shape[2] - length))
    blocks = rearrange(blocks, "b (i j) d -> b d i j", j=fine.shape[2])
    within = einsum(blocks, torch.view_as_real(fine), "b d i j, d n j two -> b d n i two")
    return (torch.view_as_complex(within.contiguous()) * coarse).sum(dim=-1)


def filter_tokens(
    x: Float[Tensor, "b n d"],
    kernel: Float[Tensor, "c d n"],
    reverse: Float[Tensor, "c d n"] | None,
    skip: Float[Tensor, "c d"],
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    impl: Impl = "auto",
) -> Float[Tensor, "b n c_times_d"]:
    """kernel * x + skip x along the real tokens, in single precision or better; nothing at padded positions.

    The reverse kernel, where there is one, sees the tokens after the present one.
    """
    if impl == "reference":
        return reference.filter_tokens(x, kernel, reverse, skip, mask)
    u, _ = left_align(at_least_single(x), mask)
    u = rearrange(u, "b n d -> b 1 d n")
    y = long_convolution(u, kernel, reverse) + rearrange(skip, "c d -> c d 1") * u
    y = rearrange(y, "b c d n -> b n (c d)")
    if mask is None:
        return y
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return y[rows, (mask.cumsum(dim=1) - 1).clamp(min=0)] * mask[..., None]  # back to where the tokens were


def chunk_type(x: Float[Tensor, "b n d"], states: int) -> torch.dtype | None:
    """In which type `filter_chunks` should multiply these tokens, as every product does here; None: not at all.

    `states` says of how many real numbers a state consists.
    """
    kind = x.device.type
    if choose("auto", "state_space", x, _unsupported_reason(x, states)) != "triton":
        return None
    cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if cast else x.dtype


def filter_chunks(
    x: Float[Tensor, "b n d"], chunk: Chunk, mask: Bool[Tensor, "b n"] | None = None, *, gelu: bool = False
) -> Float[Tensor, "b n c_times_d"]:
    """A recurrence chunk by chunk along the real tokens, and GELU of it; nothing at padded positions.

    Products are of numbers in the type of the chunk, summed in float32; the state goes from chunk to chunk in float32.

    >>> y = filter_chunks(x, lift(ahead, c, reads, skip, across, x.dtype), mask)
    """
    diagonal = chunk.across.is_complex()
    choose("triton", "state_space", x, _unsupported_reason(x, chunk.across.shape[1] * (2 if diagonal else 1)))
    across = torch.view_as_real(chunk.across.to(torch.complex64)) if diagonal else chunk.across.float()
    order, places = (None, None) if mask is None else _permutation(mask)
    return operator.forward(x.to(chunk.read.dtype), chunk.read, chunk.write, across, order, places, diagonal, gelu)[0]


def _permutation(mask: Bool[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Where the real tokens of a row lie, and the place of each among them; -1 for those that are not."""
    order = mask.logical_not().long().argsort(dim=1, stable=True)
    order = order.masked_fill(~real(mask.sum(dim=1), mask.shape[1]), -1)
    return order.int(), (mask.cumsum(dim=1) - 1).masked_fill(~mask, -1).int()


def _unsupported_reason(x: Float[Tensor, "b n d"], states: int) -> str:
    """What keeps recurrences in chunks from these tokens, if anything."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"it takes float32 or bfloat16, got {x.dtype}"
    if states > MOST:
        return f"a state may have {MOST} numbers, got {states}"
    return "" if x.numel() else "there are no tokens"


def gently_trained(value: Tensor) -> nn.Parameter:
    """A parameter of the dynamics, which says by its attribute `optim` how the papers want it to be trained."""
    parameter = nn.Parameter(value.clone())
    parameter.optim = {"weight_decay": 0.0, "max_learning_rate": 1e-3}  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def _powers(log_a: Complex[Tensor, "d n"], length: int) -> tuple[Complex[Tensor, "d n i"], Complex[Tensor, "d n j"]]:
    """A^(i block) and A^j, such that i block + j runs over 0 to length - 1 and perhaps a little beyond."""
    block = 1
    while block**2 < length:  # by comparing, so that a graph compiled for one length holds for others
        block *= 2
    times = torch.arange(block, device=log_a.device)
    return (log_a[..., None] * (block * times[: -(-length // block)])).exp(), (log_a[..., None] * times).exp()
