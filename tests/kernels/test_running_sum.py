"""Running sum: chunks give the same as a single scan along the row."""

import pytest
import torch

from longspan.kernels.running_sum import running_sum


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000, 64 * 65])
def test_chunks_give_the_sum_up_to_each_token_and_its_gradient(length):
    x = torch.randn(2, 2, length, 3, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(x)
    found, expected = running_sum(x), x.cumsum(dim=2)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad((y * direction).sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(*gradients)


def test_what_comes_later_is_never_added():
    x = torch.randn(1, 1, 300, 2)
    changed = x.clone()
    changed[:, :, 130:] = torch.inf
    assert torch.equal(running_sum(x)[:, :, :130], running_sum(changed)[:, :, :130])
