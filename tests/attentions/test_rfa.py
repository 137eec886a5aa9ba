"""Random feature attention against dense weights, its gate against a loop, its features against the Gaussian kernel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise, random_mask

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


def kernel(layer, q, k):
    """phi(q) . phi(k) of all pairs, as the cosine of the difference of angles."""
    matrix = layer.sigma * layer.projection / layer.tau
    q, k = (x / (x.norm(dim=-1, keepdim=True) + 1e-3) @ matrix.mT for x in (q, k))
    return (q[:, :, :, None] - k[:, :, None]).cos().mean(dim=-1)


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), masked=st.booleans(), tau=st.sampled_from([0.7, 1.0, 2.5]))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_dense_formula(pattern, n, m, masked, tau):
    layer = headwise(f"rfa(tau={tau})", pattern)
    torch.nn.init.uniform_(layer.sigma, 0.5, 2)

    def dense(q, k, v, visible):
        w = kernel(layer, q, k) * visible
        total = w.sum(dim=-1, keepdim=True)
        return w @ v / torch.where(visible.any(dim=-1, keepdim=True), total, 1)

    assert_attend_is(dense, layer, n=n, m=m, masked=masked)


@pytest.mark.parametrize("n", [1, 2, 63, 150])
def test_the_gate_is_a_fading_of_weights(n):
    layer = headwise("rfa(gate=True)", Pattern.CAUSAL_SELF)
    q, k, v = (torch.randn(3, 2, n, c, dtype=torch.float64, requires_grad=True) for c in (6, 6, 7))
    mask = random_mask(n)
    g = torch.where(mask[:, None], v[..., -1].sigmoid(), 1)
    rows = []
    for t in range(n):
        after = torch.stack([g[:, :, s + 1 : t + 1].prod(dim=-1) for s in range(t + 1)], dim=-1)
        w = kernel(layer, q[:, :, t : t + 1], k[:, :, : t + 1])[:, :, 0] * (1 - g[:, :, : t + 1]) * after
        total = w.sum(dim=-1, keepdim=True)
        rows.append((w[..., None] * v[:, :, : t + 1, :-1]).sum(dim=2) / torch.where(total == 0, 1, total))
    found, expected = layer.attend(q, k, v, key_mask=mask), torch.stack(rows, dim=2)
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(found)
    gradients = (torch.autograd.grad((y * cotangent).sum(), (q, k, v)) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", ["rfa", "rfa(gate=True)", "rfa(scale=0.1, floor=1.0, denominator=positive)"])
@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(spec, pattern):
    assert_steps_continue(headwise(spec, pattern))


def test_many_features_give_the_gaussian_kernel():
    layer = headwise("rfa(features=40_000, tau=0.8)", Pattern.NONCAUSAL_SELF)
    q, k = torch.randn(2, 1, 2, 5, 6, dtype=torch.float64)
    unit_q, unit_k = (x / (x.norm(dim=-1, keepdim=True) + 1e-3) for x in (q, k))
    gaussian = (-torch.cdist(unit_q, unit_k).square() / (2 * 0.8**2)).exp()
    found = layer.waves(q, layer.projection) @ layer.waves(k, layer.projection).mT
    torch.testing.assert_close(found, gaussian, atol=0.02, rtol=0)  # four standard errors of 40,000 samples


@pytest.mark.parametrize("spec", ["rfa", "rfa(gate=True)"])
def test_training_draws_its_waves_anew_and_evaluation_keeps_them(spec):
    """With one W for a whole training run, queries drift to where denominators are 0, and the layer stops learning."""
    layer = headwise(spec, Pattern.CAUSAL_SELF)
    q, k, v = (torch.randn(1, 2, 9, c, dtype=torch.float64) for c in (6, 6, 6 + layer.gated))
    torch.testing.assert_close(layer.attend(q, k, v), layer.attend(q, k, v), rtol=0, atol=0)
    kept = layer.projection.clone()
    one, other = (layer.train().attend(q, k, v) for _ in range(2))
    assert not torch.allclose(one[:, :, 1:], other[:, :, 1:], atol=1e-3)
    assert torch.equal(layer.projection, kept)


@pytest.mark.parametrize(
    "denominator, expected", [("signed", [-3, 3, 2]), ("absolute", [3, 3, 2]), ("positive", [6, 3, 2])]
)
def test_denominators_keep_their_distance_from_zero(denominator, expected):
    layer = headwise(f"rfa(floor=0.5, denominator={denominator})", Pattern.NONCAUSAL_SELF)
    sums = torch.tensor([[3.0, -1.0], [3.0, 1.0], [1.0, 0.1]])[None, None]
    assert layer._divided(sums)[0, 0, :, 0].tolist() == expected


@pytest.mark.parametrize("option", ["features=0", "tau=0.0", "floor=0.0", "scale=0.0"])
def test_options_without_a_meaning_are_refused(option):
    with pytest.raises(UsageError, match=option):
        headwise(f"rfa({option})", Pattern.NONCAUSAL_SELF)
