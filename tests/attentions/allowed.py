"""Softmax attention over allowed pairs, written out in float64, as the reference for sparse mechanisms."""

from collections.abc import Callable

import torch
from torch import Tensor

from longspan.attentions import HeadwiseAttention


def pairs(sees: Callable[[int, int, int, int], bool], b: int, h: int, n: int, key_mask: Tensor | None = None) -> Tensor:
    """[b h n n], True where `sees(row, head, i, j)` and key j is real."""
    table = [[[[sees(r, g, i, j) for j in range(n)] for i in range(n)] for g in range(h)] for r in range(b)]
    allowed = torch.tensor(table)
    return allowed if key_mask is None else allowed & key_mask[:, None, None, :]


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """exp(q k) over the allowed keys, divided by its sum; 0 where nothing is allowed."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp() * allowed
    total = weights.sum(dim=-1, keepdim=True)
    return weights @ v / torch.where(total > 0, total, 1)


def tensors(b: int, h: int, n: int, c: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(b, h, n, c, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def holes(b: int, n: int, seed: int) -> Tensor | None:
    """No mask at all, or rows with holes, the last of them all padding."""
    if seed % 3 == 0:
        return None
    mask = torch.rand(b, n, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[-1] = mask[-1] & (seed % 3 == 1)
    return mask


def assert_same(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Compare outputs and gradients."""
    torch.testing.assert_close(found, expected)
    w = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(9))
    gradients = (torch.autograd.grad((y * w).sum(), leaves, allow_unused=True) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def assert_attend_is(layer: HeadwiseAttention, sees: Callable[[int, int, int, int], bool], n: int, seed: int) -> None:
    """`attend` and `weights` use exactly the allowed pairs, also under a mask with holes."""
    b, h = 2, layer.heads
    q, k, v = tensors(b, h, n, layer.head_dim, seed)
    mask = holes(b, n, seed)
    allowed = pairs(sees, b, h, n, mask)
    expected = attention(q, k, v, allowed)
    assert_same(layer.attend(q, k, v, key_mask=mask), expected, [q, k, v])
    weights = layer.weights(q, k, key_mask=mask)
    assert weights is not None
    assert not weights[~allowed].any()
    torch.testing.assert_close(weights @ v, expected)


def assert_steps_continue(layer: HeadwiseAttention, n: int) -> None:
    """Decoding after a prefix (empty, whole or with holes) continues each row as if its padding were removed."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, n, layer.dim, dtype=torch.float64, generator=generator)
    mask = torch.ones(3, n, dtype=torch.bool)
    mask[1, 1:3], mask[2, :4] = False, False
    for prefix, real in [(0, torch.ones_like(mask)), (4, mask), (n // 2, mask), (n - 1, mask)]:
        given = x.masked_fill(~real[..., None], 1e4)
        _, state = layer.prefill(given[:, :prefix], mask=real[:, :prefix])
        for t in range(prefix, n):
            y_t, state = layer.step(x[:, t], state)
            for row in range(3):
                seen = torch.cat([x[row, :prefix][real[row, :prefix]], x[row, prefix : t + 1]])
                torch.testing.assert_close(y_t[row], layer(seen[None])[0, -1])
