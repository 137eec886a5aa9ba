"""Torch's kernels of exact attention: which of them computes a call, and two calls that torch's own function lacks.

    flash_ragged    packed rows of different lengths, each a sequence of its own
    flash_window    the keys i - left ... i + right of query i; tiles without any are skipped

These two call FlashAttention itself: half precision on a GPU, heads of at most 256 channels, a multiple of 8, and every
query must see a key.
"""

import contextlib
import warnings

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longspan.kernels.packing import Layout

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_NAMES = {backend.value: name for name, backend in BACKENDS.items()}
_REFUSALS = ("No viable backend", "No available kernel")


def chosen(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    visible: Bool[Tensor, "#b #h #n m"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> str | None:
    """The kernel that torch chooses for this call when `kernel` is requested; None if that one cannot compute it.

    >>> chosen(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8), kernel="math")
    'math'
    """
    wanted = sdpa_kernel(BACKENDS[kernel]) if kernel in BACKENDS else contextlib.nullcontext()
    with warnings.catch_warnings(), wanted:
        warnings.simplefilter("ignore")  # torch lists its reasons there
        try:
            found = torch.ops.aten._fused_sdp_choice(q, k, v, visible, dropout, causal)
        except RuntimeError as error:
            if not refused(error):
                raise
            return None
    return _NAMES.get(found)


def refused(error: RuntimeError) -> bool:
    """Whether torch says that no kernel it was allowed can compute a call."""
    return any(words in str(error) for words in _REFUSALS)


def available(device: str, dtype: torch.dtype, *, width: int = 64) -> dict[str, bool]:
    """The kernels this device has for heads of this width, and whether each takes a mask."""
    q = torch.zeros(1, 1, 128, width, device=device, dtype=dtype)
    visible = torch.ones(1, 1, 128, 128, device=device, dtype=torch.bool)
    found = {name: chosen(q, q, q, kernel=name) == name for name in BACKENDS}
    return {name: chosen(q, q, q, visible=visible, kernel=name) == name for name, there in found.items() if there}


def flash_fits(q: Float[Tensor, "*rows c"], v: Float[Tensor, "*more e"]) -> bool:
    """Whether FlashAttention takes these, whatever the order of their axes but the last."""
    half = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == v.dtype
    widths = q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return q.device.type == "cuda" and half and widths


def flash_ragged(
    q: Float[Tensor, "queries h c"],
    k: Float[Tensor, "t h c"],
    v: Float[Tensor, "t h c"],
    layout: Layout,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    queries: tuple[Int[Tensor, " rows_plus_1"], int] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "queries h c"]:
    """Each row by itself; `window` is (left, right), `queries` are cu_seqlens and max_seqlen where they differ."""
    cu_seqlens, max_seqlen = queries or (layout.cu_seqlens, layout.max_seqlen)
    left, right = window or (None, None)
    rows, longest = (cu_seqlens, layout.cu_seqlens), (max_seqlen, layout.max_seqlen)
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *rows, *longest, dropout, causal, False, window_size_left=left, window_size_right=right
    )[0]


def flash_window(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h n c"],
    v: Float[Tensor, "b h n c"],
    *,
    left: int,
    right: int,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n c"]:
    n = q.shape[2]
    q, k, v = (rearrange(u, "b h n c -> b n h c") for u in (q, k, v))
    y = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, n, n, dropout, False, False, window_size_left=left, window_size_right=right
    )[0]
    return rearrange(y, "b n h c -> b h n c")
