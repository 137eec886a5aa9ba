"""Problems for the tests of running softmax: random tensors, controls, masks, and gradients."""

from typing import Any

import torch

from longspan.kernels import bounded_memory
from tests.kernels import agreement


def draw(
    n, m=None, *, slots=3, c=8, e=8, rows=1, heads=1, spread=1.0, shared=False, masked=False, causal=True,
    dtype=torch.float32, device="cpu", seed=0,
):  # fmt: skip
    """q, k, v and the controls, all with requires_grad, and the other arguments; `spread` scales the logits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    m = n if m is None else m
    tokens = [normal(rows, heads, n, c), normal(rows, heads, m, c), normal(rows, heads, m, e)]
    controls = [spread * normal(c, slots) / c**0.5] + ([] if shared else [spread * normal(e, slots) / e**0.5])
    single = torch.promote_types(dtype, torch.float32)  # as parameters are under autocast
    inputs = [x.to(device, dtype) for x in tokens] + [x.to(device, single) for x in controls]
    options: dict[str, Any] = {"causal": causal}
    if masked:
        mask = torch.rand(rows, m, generator=generator) < 0.7
        mask[0, : m // 3] = False
        options["key_mask"] = mask.to(device)
    return [x.requires_grad_() for x in inputs], options


def outcome(inputs, options, impl):
    """The output and all gradients."""
    return agreement.outcome(lambda *leaves: bounded_memory.attend(*leaves, **options, impl=impl), inputs)
