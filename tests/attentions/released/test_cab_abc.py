"""CAB's ABC: a rescaled value in causal patterns, ABC itself in the others."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.attentions.released.cab_abc import CABABC
from longspan.core.errors import UsageError
from tests.attentions.agreement import assert_steps_continue, headwise, random_mask

CS = Pattern.CAUSAL_SELF
OTHERS = [pattern for pattern in Pattern if pattern is not CS]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", OTHERS)
def test_in_other_patterns_it_is_abc(pattern, masked):
    twin, abc = headwise("cab_abc(slots=5)", pattern), headwise("abc(slots=5)", pattern)
    abc.load_state_dict(twin.state_dict())
    q, k, v = (torch.randn(3, 2, t, 6, dtype=torch.float64) for t in (20, 30, 30))
    key_mask = random_mask(30) if masked else None
    torch.testing.assert_close(twin.attend(q, k, v, key_mask=key_mask), abc.attend(q, k, v, key_mask=key_mask))


def test_a_causal_output_is_a_multiple_of_the_own_value():
    layer = headwise("cab_abc(slots=5)", CS)
    q, k, v = torch.randn(3, 2, 2, 40, 6, dtype=torch.float64)
    ratio = layer.attend(q, k, v) / v
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    assert ((ratio > 0) & (ratio <= 1)).all()


@pytest.mark.parametrize("masked", [False, True])
def test_causally_it_is_the_formula_written_out(masked):
    layer = headwise("cab_abc(slots=5)", CS)
    assert isinstance(layer, CABABC)
    q, k, v = (torch.randn(3, 2, 25, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = random_mask(25) if masked else torch.ones(3, 25, dtype=torch.bool)

    def normalised(a):
        visible = (torch.ones(25, 25, dtype=torch.bool).tril() & mask[:, None])[:, None, :, :, None]
        total = (a.exp()[:, :, None] * visible).sum(dim=3)
        return a.exp() * mask[:, None, :, None] / total.clamp(min=1e-300)

    phi, psi = normalised(k @ layer.control_key), normalised(v @ layer.control_value)
    keys, values = (torch.einsum("bhnr,bhnc->bhnrc", p, u) for p, u in ((phi, k), (psi, v)))
    p = (torch.einsum("bhnc,bhnrc->bhnr", q, keys) / 6**0.5).softmax(dim=-1)
    expected = torch.einsum("bhnr,bhnrc->bhnc", p, values)
    found = layer.attend(q, k, v, key_mask=mask if masked else None)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("pattern", [CS, Pattern.CAUSAL_CROSS])
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("cab_abc(slots=5)", pattern))


def test_there_is_at_least_one_slot():
    with pytest.raises(UsageError, match="slots=0"):
        headwise("cab_abc(slots=0)", CS)
