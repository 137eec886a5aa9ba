"""YOSO-E against the dense formula and the probability that hashes agree, and its gradient against the paper's."""

import pytest
import torch
import torch.nn.functional as F

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels import collision_attention
from tests.attentions.agreement import PATTERNS, assert_steps_continue, headwise, random_mask


@pytest.mark.parametrize("queries", [256, 4])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_outputs_and_gradients_are_those_of_the_paper(pattern, queries, monkeypatch):
    """dq_i = sum_j (g_i . v_j) w_ij (bits / 2) k_j for unit vectors, where g is the gradient of u."""
    monkeypatch.setattr(collision_attention, "QUERIES", queries)
    layer = headwise("yoso_e(bits=5)", pattern, heads=1)
    q, k, v = (F.normalize(torch.randn(2, 1, 9, 6).double(), dim=-1).requires_grad_() for _ in range(3))
    mask = random_mask(9)[:2]
    y = layer.attend(q, k, v, key_mask=mask)
    dy = torch.randn_like(y)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), dy)
    q, k, v = (x.detach() for x in (q, k, v))
    w = (1 - (q @ k.mT).acos() / torch.pi) ** 5 * mask[:, None, None]
    w = w.tril() if pattern is Pattern.CAUSAL_SELF else w
    u = w @ v
    torch.testing.assert_close(y, F.normalize(u, dim=-1))
    length = u.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    g = (dy - (dy * u / length).sum(dim=-1, keepdim=True) * u / length) / length
    through = (g @ v.mT) * w * 5 / 2
    for found, expected, unit in ((dq, through @ k, q), (dk, through.mT @ q, k)):
        expected = expected - (expected * unit).sum(dim=-1, keepdim=True) * unit  # q and k are made unit vectors first
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dv, w.mT @ g)


def test_a_weight_is_the_chance_that_all_bits_of_a_hash_agree():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 6).double()
    planes = torch.randn(6, 40_000, 3).double()
    same = (torch.tensordot(q[0, 0, 0], planes, 1).sign() == torch.tensordot(k[0, 0, 0], planes, 1).sign()).all(dim=-1)
    chance = same.double().mean()
    w = collision_attention.collision(torch.cosine_similarity(q, k, dim=-1)[..., None], bits=3)
    assert abs(w.item() - chance.item()) < 4 * (chance * (1 - chance) / 40_000) ** 0.5


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("yoso_e", pattern))


def test_equal_queries_and_keys_have_finite_outputs_and_gradients():
    layer = headwise("yoso_e", Pattern.NONCAUSAL_SELF, heads=1).float()
    x = torch.randn(4, 1, 64, 6, requires_grad=True)
    y = layer.attend(x, x, x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("options", ["bits=0", "conv=4"])
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(UsageError):
        headwise(f"yoso_e({options})", Pattern.NONCAUSAL_SELF)


@pytest.mark.parametrize("pattern", [p for p in Pattern if p is not Pattern.NONCAUSAL_SELF])
def test_a_centred_convolution_is_for_noncausal_self_attention_alone(pattern):
    with pytest.raises(UsageError, match="conv=5"):
        headwise("yoso_e(conv=5)", pattern)
