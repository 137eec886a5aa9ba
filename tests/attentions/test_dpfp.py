"""DPFP against dense weights, and its delta rule against a loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise, random_mask

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def phi(x, nu):
    u = torch.cat([x, -x], dim=-1).clamp(min=0)
    width, products = u.shape[-1], []
    for shift in range(1, nu + 1):
        products += [u[..., i] * u[..., (i - shift) % width] for i in range(width)]
    return torch.stack(products, dim=-1)


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, 70), m=st.integers(1, 70), nu=st.integers(1, 4), masked=st.booleans())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, n, m, nu, masked):
    def dense(q, k, v, visible):
        w = phi(q, nu) @ phi(k, nu).mT / q.shape[-1] ** 0.5 * visible
        return w @ v / (w.sum(dim=-1, keepdim=True) + 1e-5)

    assert_attend_is(dense, headwise(f"dpfp(nu={nu})", pattern), n=n, m=m, masked=masked)


def token_by_token(layer, q, k, v, mask):
    memory, rows = torch.zeros(*q.shape[:2], 2 * layer.nu * q.shape[3], q.shape[3]).to(q), []
    q, k = (phi(x, layer.nu) for x in (q, k))
    q, k = (x / x.sum(dim=-1, keepdim=True) for x in (q, k))
    for t in range(q.shape[2]):
        held = torch.einsum("bhr,bhre->bhe", k[:, :, t], memory)
        beta = v[:, :, t, -1:].sigmoid() * mask[:, None, t, None]
        memory = memory + torch.einsum("bhr,bhe->bhre", k[:, :, t], beta * (v[:, :, t, :-1] - held))
        rows.append(torch.einsum("bhr,bhre->bhe", q[:, :, t], memory))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("n", [1, 2, 63, 150])
def test_the_delta_rule_is_a_loop_over_tokens(n):
    layer = headwise("dpfp(update=delta)", Pattern.CAUSAL_SELF)
    q, k, v = (torch.randn(3, 2, n, c, dtype=torch.float64, requires_grad=True) for c in (6, 6, 7))
    mask = random_mask(n)
    found, expected = layer.attend(q, k, v, key_mask=mask), token_by_token(layer, q, k, v, mask)
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * cotangent).sum(), (q, k, v)) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_the_delta_rule_at_full_strength_gives_back_what_was_written_last_for_a_key():
    """A key with a single active feature is distinct from all others."""
    layer = headwise("dpfp(nu=1, update=delta)", Pattern.CAUSAL_SELF)
    key = torch.zeros(1, 2, 3, 6, dtype=torch.float64)
    key[..., :2] = 1  # u * roll(u, 1) has one entry
    v = torch.randn(1, 2, 3, 7, dtype=torch.float64)
    v[..., -1] = 100  # beta = 1
    torch.testing.assert_close(layer.attend(key, key, v), v[..., :-1])


@pytest.mark.parametrize("spec", ["dpfp", "dpfp(update=delta)"])
@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(spec, pattern):
    assert_steps_continue(headwise(spec, pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_a_delta_rule_has_a_gate(pattern):
    layers = (headwise(spec, pattern) for spec in ("dpfp", "dpfp(update=delta)"))
    plain, delta = (sum(parameter.numel() for parameter in layer.parameters()) for layer in layers)
    assert delta - plain == (13 * 2 if pattern is Pattern.CAUSAL_SELF else 0)


@pytest.mark.parametrize("nu", [0, 12])
def test_a_roll_that_is_none_is_refused(nu):
    with pytest.raises(UsageError, match=f"got nu={nu}; choose 1 to 11"):
        headwise(f"dpfp(nu={nu})", Pattern.NONCAUSAL_SELF)
