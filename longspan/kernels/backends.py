"""Torch's own kernels of exact attention: which of them this machine has, and which one computes a given call.

Torch decides by device, type, widths and mask, and tells nobody. It is asked here what it would decide, which is the
very question it asks itself, so that nothing is computed twice.
"""

import contextlib
import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    """The kernel that computes this call when `kernel` is asked for; None when that one cannot.

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
