"""Comparing a mechanism with an independent formula for it, in float64, in outputs and gradients."""

from collections.abc import Callable

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern

PATTERNS = list(Pattern)


def headwise(
    spec: str, pattern: Pattern, *, heads: int = 2, channels: int = 6, seed: int = 0, **shell: int
) -> HeadwiseAttention:
    """A small layer in float64 whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    layer = attentions.get(spec)(heads * channels, heads, pattern, **shell).double().eval()
    assert isinstance(layer, HeadwiseAttention)
    return layer


def random_mask(length: int) -> Tensor:
    """Three rows: no padding, holes and left padding, all padding."""
    torch.manual_seed(length)
    mask = torch.rand(3, length) < 0.7
    mask[0], mask[1, :3], mask[2] = True, False, False
    return mask


def assert_attend_is(
    reference: Callable[..., Tensor], layer: HeadwiseAttention, *, n: int = 70, m: int = 45, masked: bool = True
) -> None:
    """`reference(q, k, v, visible)` with visible [b 1 n m], True where a query may see a key."""
    torch.manual_seed(1)
    m = m if layer.pattern.cross else n
    q, k, v = (torch.randn(3, layer.heads, t, layer.head_dim, dtype=torch.float64) for t in (n, m, m))
    leaves = [x.requires_grad_() for x in (q, k, v)] + [
        p for p in layer.parameters() if p.ndim and not _projects(layer, p)
    ]
    key_mask = random_mask(m) if masked else None
    visible = (
        torch.ones(3, 1, n, m, dtype=torch.bool) if key_mask is None else key_mask[:, None, None].expand(3, 1, n, m)
    )
    visible = visible.tril() if layer.pattern is Pattern.CAUSAL_SELF else visible
    found, expected = layer.attend(q, k, v, key_mask=key_mask), reference(q, k, v, visible)
    torch.testing.assert_close(found, expected)
    assert (found.movedim(1, 2)[~visible[:, 0].any(dim=-1)] == 0).all(), "a row with nothing to see must be exactly 0"
    cotangent = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * cotangent).sum(), leaves, allow_unused=True) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def assert_steps_continue(layer: HeadwiseAttention, *, n: int = 12) -> None:
    """Decoding after a prefix, empty or with holes, gives the same rows as the parallel form."""
    torch.manual_seed(2)
    x, context = torch.randn(3, n, layer.dim).double(), torch.randn(3, 7, layer.dim).double()
    holes = torch.ones(3, n, dtype=torch.bool)
    holes[1, 1:3], holes[2, :4] = False, False
    cross = {"context": context, "context_mask": random_mask(7)} if layer.pattern.cross else {}
    for prefix, mask in [(0, torch.ones_like(holes)), (4, holes), (n - 1, holes)]:
        y, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix], **cross)
        rows = [y]
        for t in range(prefix, n):
            y_t, state = layer.step(x[:, t], state)
            rows.append(y_t[:, None])
        torch.testing.assert_close(torch.cat(rows, dim=1)[mask], layer(x, mask=mask, **cross)[mask])


def _projects(layer: HeadwiseAttention, parameter: Tensor) -> bool:
    return any(parameter is own for linear in layer.projections() for own in linear.parameters())
