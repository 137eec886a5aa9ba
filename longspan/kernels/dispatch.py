"""Which implementation computes a call: the reference, or a Triton kernel where there is a GPU that can run it.

    impl = choose(impl, "favor", q, unsupported_reason)      # why the kernel cannot take these tensors, or ""

Requested by name, the kernel also takes CPU tensors, by Triton's interpreter, and an error says why it cannot run.
"""

from importlib.util import find_spec
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from longspan.core.errors import UsageError

Implementation = Literal["auto", "reference", "triton"]

HAS_TRITON = find_spec("triton") is not None and torch.version.hip is None


def unsupported_inputs(*qkv: Float[Tensor, "..."]) -> str:
    """Why a kernel for float32 and bfloat16 cannot take q, k and v, or ""."""
    dtypes = [x.dtype for x in qkv]
    if len(set(dtypes)) > 1 or dtypes[0] not in (torch.float32, torch.bfloat16):
        return f"it takes q, k and v all in float32 or all in bfloat16, got {', '.join(map(str, dtypes))}"
    return "" if all(x.numel() for x in qkv) else "there are no tokens"


def lack_of_room(x: Shaped[Tensor, "..."], needed: int) -> str:
    """Why a kernel whose programs need this much shared memory, more than small GPUs have, cannot take x, or ""."""
    if x.device.type != "cuda":
        return ""
    found = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return f"it needs {needed} bytes of shared memory, this GPU has {found}" if found < needed else ""


def choose(
    impl: Implementation, name: str, x: Shaped[Tensor, "..."], unsupported_reason: str
) -> Literal["reference", "triton"]:
    if not HAS_TRITON:
        unsupported_reason = "it needs triton and an NVIDIA GPU"
    if impl == "auto":
        return "triton" if x.device.type == "cuda" and not unsupported_reason else "reference"
    if impl == "triton" and unsupported_reason:
        raise UsageError(f"The Triton kernel of {name} cannot run here: {unsupported_reason}; use impl='auto'.")
    return impl
