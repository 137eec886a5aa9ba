"""Heads of 512 channels, the widest in super-resolution, in every mechanism."""

import copy

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from tests.attentions.cases import CASES as DEFAULTS
from tests.attentions.cases import each_case

LENGTH = 160  # long enough that a kernel is chosen if it supports such heads
# every token there has a softmax over all pairs of channels, 80 million of them at LENGTH, with no shortcut
LENGTHS = {("xcit", Pattern.CAUSAL_SELF): 20}


def quick(spec: str, pattern: Pattern) -> bool:
    """Defaults in self attention: other options and cross attention have heads of the same width.

    The default of yoso has a sum for every bucket of every hash, which is slow with so many channels.
    """
    return spec in DEFAULTS and spec != "yoso" and not pattern.cross


CASES = [
    pytest.param(*case, marks=() if quick(*case) else pytest.mark.full, id="-".join(map(str, case)))
    for case in each_case()
]


def inputs(pattern: Pattern, width: int, length: int = LENGTH) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(2, length, width, generator=generator)  # noqa: E731
    mask = torch.arange(length) < torch.tensor([[length], [length * 2 // 3]])
    given, masks = [draw()], {"mask": mask}
    if pattern.cross:
        given.append(draw())
        masks["context_mask"] = mask
    return given, masks


def outputs(layer, given, masks, device, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's output, and all its gradients in one vector: some alone (a key's bias) are only rounding error."""
    given = [x.to(device, dtype).requires_grad_() for x in given]
    masks = {name: mask.to(device) for name, mask in masks.items()}
    y = layer(*given, **masks).masked_fill(~masks["mask"][..., None], 0)
    (y.double() * torch.linspace(-1, 1, y.shape[-1], device=device)).sum().backward()
    grads = [t.grad.double().flatten() for t in (*given, *layer.parameters()) if t.grad is not None]
    return y.detach().double().cpu(), torch.cat(grads).cpu()


def made(spec: str, pattern: Pattern, width: int):
    torch.manual_seed(0)
    return attentions.get(spec)(width, 1, pattern, max_length=LENGTH, max_context=LENGTH).eval()


@pytest.mark.parametrize(("spec", "pattern"), CASES)
def test_a_head_of_512_channels_is_as_exact_as_any(spec, pattern):
    layer, (given, masks) = made(spec, pattern, 512), inputs(pattern, 512, LENGTHS.get((spec, pattern), LENGTH))
    exact = outputs(copy.deepcopy(layer).double(), given, masks, "cpu", torch.float64)
    for found, wanted in zip(outputs(layer, given, masks, "cpu", torch.float32), exact, strict=True):
        assert (found - wanted).norm() <= 1e-4 * wanted.norm()
