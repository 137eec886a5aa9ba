"""Products of a long and a short matrix: computing them in pieces gives the same outputs and gradients."""

import pytest
import torch

from longspan.kernels.landmark import pieces


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 2, *s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


def assert_agree(found, expected, leaves):
    torch.testing.assert_close(found, expected)
    direction = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad((y * direction).sum(), leaves) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [0, 1, 63, 512, 1000, 1536])
def test_a_sum_over_pieces_is_the_sum(length):
    x, y = draw((length, 3), (length, 5))
    assert_agree(pieces.weighted_sums(x, y), x.mT @ y, (x, y))


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("length", [0, 1, 63])
def test_one_matrix_for_all_rows_gets_the_gradient_of_all(length, heads):
    (y,) = draw((length, 5))
    x = torch.randn(*heads, length, 3, dtype=torch.float64).requires_grad_()
    assert_agree(pieces.project_length(x, y), x.mT @ y, (x, y))


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_other_gets_its_gradient_where_one_is_frozen(frozen):
    (y,) = draw((8, 5))
    leaves = [torch.randn(8, 3, dtype=torch.float64).requires_grad_(), y]
    leaves[frozen] = leaves[frozen].detach()
    (found,) = torch.autograd.grad(pieces.project_length(*leaves).sum(), [leaves[1 - frozen]])
    (expected,) = torch.autograd.grad((leaves[0].mT @ leaves[1]).sum(), [leaves[1 - frozen]])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("n", [1, 63, 2048, 3072])
def test_pieces_as_heads_or_rows_are_attention(n, outside):
    q, k, v = draw((n, 4), (5, 4), (5, 3))
    if outside:
        q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert_agree(pieces.fused_attention(q, k, v), expected, (q, k, v))
