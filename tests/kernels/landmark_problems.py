"""Random tensors and masks for the tests of landmark attention."""

import torch

# In float32 only the order of summation differs. In bfloat16 results are rounded by a relative 2^-9, and so are the
# terms of some gradients before they are summed.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def normal(*shape, seed=0, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def mask_of(rows, n, *, seed=0, device="cpu"):
    """Which tokens are real: some of the first row, none of the others."""
    mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[1:] = False
    return mask.to(device)
