"""The pseudo-inverse by iteration: fused products give what the printed formula gives."""

import pytest
import torch

from longspan.kernels.pseudo_inverse import pseudo_inverse


@pytest.mark.parametrize("start", ["matrix", "batch"])
@pytest.mark.parametrize("r", [1, 2, 7, 16])
def test_fused_products_agree_with_the_formula_in_outputs_and_gradients(r, start):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, r, r, dtype=torch.float64, requires_grad=True)
    fast, law = (pseudo_inverse(logits.softmax(dim=-1), 6, start, impl=impl) for impl in ("auto", "reference"))
    torch.testing.assert_close(fast, law)
    w = torch.randn_like(law)
    found, expected = (torch.autograd.grad((z * w).sum(), logits)[0] for z in (fast, law))
    torch.testing.assert_close(found, expected)


def test_one_scale_for_the_batch_lets_matrices_change_one_another():
    torch.manual_seed(0)
    a = (torch.randn(2, 1, 5, 5, dtype=torch.float64) * torch.tensor([1.0, 9.0])[:, None, None, None]).softmax(dim=-1)
    for start, alike in (("matrix", True), ("batch", False)):
        alone = torch.cat([pseudo_inverse(one[None], 3, start) for one in a])
        assert torch.allclose(pseudo_inverse(a, 3, start), alone) is alike
