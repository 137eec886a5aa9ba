"""Long Range Arena's local attention: groups are strided, the mask is not."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError


def build(spec="lra_local(block=5)", dim=8, heads=2, **shell):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, Pattern.NONCAUSAL_SELF, **shell).double().eval()


def reach(layer, n, mask=None):
    """Which tokens change which outputs, [n n]: row i, column j."""
    x = torch.randn(1, n, 8, dtype=torch.float64)
    rows = torch.autograd.functional.jacobian(lambda x: layer(x, mask=mask).sum(dim=-1)[0], x)
    return rows[:, 0].abs().amax(dim=-1) > 0


@pytest.mark.parametrize("n, groups", [(1, 1), (4, 1), (5, 2), (13, 3), (20, 5), (22, 5)])
def test_a_token_sees_those_that_are_equal_modulo_the_number_of_groups(n, groups):
    place = torch.arange(n)
    assert torch.equal(reach(build(), n), place[:, None] % groups == place % groups)


def test_the_zeros_behind_the_row_count_as_tokens():
    layer = build("lra_local(block=4)")
    q, k = torch.zeros(2, 1, 2, 6, 4, dtype=torch.float64)
    v = torch.ones(1, 2, 6, 4, dtype=torch.float64)
    y = layer.attend(q, k, v)  # 6 tokens in groups 0, 1, and 2 zeros after them
    torch.testing.assert_close(y, torch.full_like(y, 3 / 4))


def test_a_row_that_divides_is_lengthened_by_a_whole_block():
    layer = build("lra_local(block=4)")
    q, k = torch.zeros(2, 1, 2, 4, 4, dtype=torch.float64)
    y = layer.attend(q, k, torch.ones(1, 2, 4, 4, dtype=torch.float64))
    torch.testing.assert_close(y, torch.full_like(y, 1 / 2))


def test_the_mask_hides_other_tokens_than_those_it_belongs_to():
    """Token 12 of 13 is padding. The mask reads 12 as group 2, third; the third of group 2 is token 2 * 3 + 2 = 8."""
    mask = torch.ones(1, 13, dtype=torch.bool)
    mask[0, 12] = False
    seen = reach(build(), 13, mask)
    assert seen[3, 12], "padding is seen"
    others = [2, 5, 11]
    assert not seen[others, 8].any(), "a real token is hidden"
    assert seen[others][:, others].all()


def test_a_query_from_which_all_is_hidden_gets_the_mean_of_its_group_and_a_fair_gradient():
    layer = build("lra_local(block=4)").float()
    q, k, v = torch.randn(3, 1, 2, 7, 4)
    v.requires_grad_()
    y = layer.attend(q, k, v, key_mask=torch.zeros(1, 7, dtype=torch.bool))
    torch.testing.assert_close(y[:, :, 0], v[:, :, [0, 2, 4, 6]].mean(dim=2))
    (gradient,) = torch.autograd.grad(y[:, :, 0].sum(), v)
    torch.testing.assert_close(gradient[:, :, 0], torch.full((1, 2, 4), 0.25))


@pytest.mark.parametrize("n", [1, 2, 49, 50, 51, 130])
@pytest.mark.parametrize("masked", [False, True])
def test_any_length_runs_forward_and_backward(n, masked):
    layer = build("lra_local", inner=4, bias=False)
    x = torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, n) < 0.6 if masked else None
    layer(x, mask=mask).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_block_of_nothing_is_refused():
    with pytest.raises(UsageError, match="got block=0"):
        build("lra_local(block=0)")
