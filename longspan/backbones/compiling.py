"""Compiling: torch.compile for the blocks of a network, set up so that all blocks of one kind share a graph."""

from collections.abc import Iterable
from typing import Any

import torch
from einops import rearrange
from torch import nn

from longspan.kernels.precision import compile_backward_without_autocast

# For graphs of any length: this analysis does not support dynamic lengths, and fails in some versions of torch.
ANY_LENGTH = {"triton.coalesce_tiling_analysis": False}


def compile_each(blocks: Iterable[nn.Module], **rules: Any) -> None:
    """Let torch.compile fuse each block by these rules; one that cannot be compiled runs as it is, with a warning."""
    torch._dynamo.config.suppress_errors = True
    # A rate or an epsilon is a constant of the graph. As a symbolic float it would be specialised after a retrace.
    torch._dynamo.config.specialize_float = True
    compile_backward_without_autocast()
    # einops caches each type it meets, and a graph traced while it did so is recompiled for the next block.
    rearrange(nn.Parameter(torch.zeros(1)), "n -> n")
    for block in blocks:
        block.compile(**rules)
