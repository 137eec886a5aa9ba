"""The Triton kernels of positive features against their law, on a GPU or in Triton's interpreter.

`test_positive_features.py` runs this file in a process of its own: Triton asks at its import whether to interpret.
"""

import pytest
import torch

from longspan.kernels.positive_features import common_features, operator, relative_features

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 8e-3}  # bfloat16 rounds phi and its gradient by 2^-9 of themselves

if DEVICE == "cpu":
    from tests.kernels.interpreter import mend

    mend()


def draw(n, *, c=16, r=40, dtype=torch.float32, rows=1, heads=1):
    generator = torch.Generator().manual_seed(n)
    x, projection = (torch.randn(*shape, generator=generator) for shape in ((rows, heads, n, c), (r, c)))
    mask = torch.rand(rows, n, generator=generator) < 0.7
    return x.to(DEVICE, dtype), projection.to(DEVICE), mask.to(DEVICE)


def assert_agrees(fast, law, x, r):
    """`fast` and `law` make phi, and what it was divided by, of x."""
    phi, by = fast(given := x.detach().requires_grad_())
    expected, expected_by = law(exact := x.detach().double().requires_grad_())
    tolerance = TOLERANCE[x.dtype]
    assert phi.dtype == x.dtype
    assert phi.shape[3] % 16 == 0
    assert not phi[..., r:].any()
    torch.testing.assert_close(phi[..., :r].double(), expected, atol=tolerance, rtol=tolerance)
    seen = expected_by > -1e30
    torch.testing.assert_close(by[seen].double(), expected_by[seen], atol=1e-4, rtol=1e-4)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(expected)
    (found,) = torch.autograd.grad((phi[..., :r] * weights.to(phi)).sum(), given)
    (gradient,) = torch.autograd.grad((expected * weights).sum(), exact)
    size = max(1.0, float(gradient.abs().max()))
    torch.testing.assert_close(found.double(), gradient, atol=tolerance * size, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n, c, r", [(1, 16, 40), (70, 16, 40), (33, 64, 100), (20, 6, 3)])
def test_features_relative_to_a_token_are_those_of_the_law(n, c, r, dtype):
    x, projection, mask = draw(n, c=c, r=r, dtype=dtype)
    shift = torch.linspace(-3, 3, r, device=DEVICE).expand(1, 1, r)

    def fast(x):
        return relative_features(x, projection, shift=shift, mask=mask, impl="triton")

    def law(x):
        return relative_features(x, projection.double(), shift=shift.double(), mask=mask, impl="reference")

    assert_agrees(fast, law, x, r)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n, hidden", [(70, False), (300, True)])
def test_features_relative_to_all_tokens_are_those_of_the_law(n, hidden, dtype):
    x, projection, mask = draw(n, dtype=dtype, rows=2)
    mask = mask if hidden else None
    assert_agrees(
        lambda x: common_features(x, projection, mask=mask, impl="triton"),
        lambda x: common_features(x, projection.double(), mask=mask, impl="reference"),
        *(x, projection.shape[0]),
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_huge_tokens_give_features_between_0_and_1_and_finite_gradients(dtype):
    x, projection, mask = draw(40, dtype=dtype)
    for compute in (relative_features, common_features):
        phi, _ = compute(given := (x * 1e4).requires_grad_(), projection, mask=mask, impl="triton")
        assert ((phi >= 0) & (phi <= 1)).all()
        assert phi.any()
        assert torch.autograd.grad(phi.sum(), given)[0].isfinite().all()


def test_a_row_without_tokens_has_no_features():
    x, projection, mask = draw(20)
    for compute in (relative_features, common_features):
        phi, by = compute(x, projection, mask=torch.zeros_like(mask), impl="triton")
        assert not phi.any()
        assert by.isfinite().all()


def test_inputs_may_lie_in_memory_in_any_order():
    x, projection, _ = draw(20, rows=2, heads=2)
    across = x.transpose(1, 2).contiguous().transpose(1, 2)
    one, other = (relative_features(order, projection, impl="triton") for order in (x, across))
    assert all(map(torch.equal, one, other))


def test_torch_finds_nothing_wrong_with_the_operators():
    x, projection, mask = draw(20)
    aspects = ("test_schema", "test_autograd_registration", "test_faketensor")
    for own in (True, False):
        torch.library.opcheck(operator.forward, (x.requires_grad_(), projection, None, mask, own), test_utils=aspects)
    torch.library.opcheck(operator.largest, (x.detach(), projection, mask), test_utils=aspects[::2])
