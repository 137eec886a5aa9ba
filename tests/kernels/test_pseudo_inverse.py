"""The pseudo-inverse by iteration: fused products give what the printed formula gives, and so does the kernel."""

import pytest
import torch

from longspan.kernels.flops import formulas
from longspan.kernels.pseudo_inverse import operator, pseudo_inverse
from tests.kernels.sm90 import compiled, needs_compiler


def as_printed(a, norm, iterations):
    """The iteration as the paper prints it, matrix by matrix."""
    norm = a.sum(dim=-2).amax(dim=-1)[..., None, None] if norm is None else norm
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    inverses = []
    for m, z in zip(a.flatten(0, 1), (a.mT / norm).flatten(0, 1), strict=True):
        for _ in range(iterations):
            z = z @ (13 * one - m @ z @ (15 * one - m @ z @ (7 * one - m @ z))) / 4
        inverses.append(z)
    return torch.stack(inverses).unflatten(0, a.shape[:2])


@pytest.mark.parametrize("norm", [None, torch.full((1, 1, 1, 1), 3.0, dtype=torch.float64)])
@pytest.mark.parametrize("r", [1, 2, 7, 16])
def test_fused_products_agree_with_the_formula_in_outputs_and_gradients(r, norm):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, r, r, dtype=torch.float64, requires_grad=True)
    a = logits.softmax(dim=-1)
    fused, printed = pseudo_inverse(a, 6, norm=norm), as_printed(a, norm, 6)
    torch.testing.assert_close(fused, printed)
    w = torch.randn_like(printed)
    found, expected = (torch.autograd.grad((z * w).sum(), logits, retain_graph=True)[0] for z in (fused, printed))
    torch.testing.assert_close(found, expected)


def test_matrices_of_a_batch_do_not_change_one_another():
    torch.manual_seed(0)
    a = (torch.randn(2, 1, 5, 5, dtype=torch.float64) * torch.tensor([1.0, 9.0])[:, None, None, None]).softmax(dim=-1)
    alone = torch.cat([pseudo_inverse(one[None], 3) for one in a])
    torch.testing.assert_close(pseudo_inverse(a, 3), alone)


def test_operations_count_four_products_a_step():
    a, ops = (2, 3, 5, 5), torch.ops.longspan
    assert formulas()[ops.pseudo_inverse](a, a, 6) == 6 * 4 * 2 * 6 * 5**3
    assert formulas()[ops.pseudo_inverse_backward](a, (6, *a), a, None, 6) == 6 * 11 * 2 * 6 * 5**3


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_it_compiles_for_a_large_gpu_within_the_memory_on_its_chip(name):
    from longspan.kernels.pseudo_inverse import triton as kernels

    constants = {"r": 64, "R": 64, **operator.LAUNCH}
    built = compiled(getattr(kernels, name), constants, {"iterations": "i32"}, otherwise="*fp32")
    assert built.metadata.shared <= 164 * 1024
