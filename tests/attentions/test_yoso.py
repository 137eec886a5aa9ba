"""YOSO against dense samples and their expectation, and its gradient against the paper's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.attentions.yoso import YOSO
from longspan.core.errors import UsageError
from longspan.kernels.bucket_sums import reference
from tests.attentions.agreement import PATTERNS, assert_steps_continue, headwise, random_mask

CAUSAL = [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS]


@pytest.fixture(autouse=True, scope="module", params=["pairs", "buckets"])
def formed(request):
    """Run every test twice: pairwise, as for short sequences, and by bucket sums, as for long ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "buckets":
            patch.setattr(reference, "PAIRS", 0)
        yield


def agreeing(layer: YOSO, q, k):
    """The share of hashes whose signs all agree, pair by pair."""
    q, k = ((x @ layer.planes.flatten(1)).sign().unflatten(-1, (layer.hashes, layer.bits)) for x in (q, k))
    w = (q[:, :, :, None] == k[:, :, None]).all(dim=-1).double().mean(dim=-1)
    return w.tril() if layer.pattern is Pattern.CAUSAL_SELF else w


@settings(max_examples=4, deadline=None)
@given(n=st.integers(1, 90), m=st.integers(1, 90), bits=st.integers(1, 5))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_outputs_and_gradients_are_those_of_the_paper(pattern, n, m, bits):
    """dq_i = sum_j (g_i . v_j) w_ij (bits / 2) k_j for unit vectors, where g is the gradient of u."""
    layer, m = headwise(f"yoso(hashes=4, bits={bits})", pattern), m if pattern.cross else n
    assert isinstance(layer, YOSO)
    q, k, v = (F.normalize(torch.randn(3, 2, t, 6).double(), dim=-1).requires_grad_() for t in (n, m, m))
    mask = random_mask(m)
    y = layer.attend(q, k, v, key_mask=mask)
    dy = torch.randn_like(y)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), dy)
    q, k, v = (x.detach() for x in (q, k, v))
    w = agreeing(layer, q, k) * mask[:, None, None]
    u = w @ v
    torch.testing.assert_close(y, F.normalize(u, dim=-1))
    length = u.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    g = (dy - (dy * u / length).sum(dim=-1, keepdim=True) * u / length) / length * (u != 0)
    through = (g @ v.mT) * w * bits / 2
    for found, expected, unit in ((dq, through @ k, q), (dk, through.mT @ q, k)):
        expected = expected - (expected * unit).sum(dim=-1, keepdim=True) * unit  # q and k are made unit vectors first
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dv[mask[:, None].expand(-1, 2, -1)], (w.mT @ g)[mask[:, None].expand(-1, 2, -1)])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_error_falls_as_one_over_the_root_of_the_number_of_hashes(pattern):
    """The error of the weights, whose deviation is that of a fraction of independent hashes."""
    torch.manual_seed(3)
    q, k = torch.randn(2, 1, 1, 40, 6).double()
    cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    chance = (1 - cosine.acos() / torch.pi) ** 4
    chance = chance.tril() if pattern is Pattern.CAUSAL_SELF else chance
    for hashes in (16, 256, 4096):
        layer = headwise(f"yoso(hashes={hashes}, bits=4)", pattern, heads=1)
        assert isinstance(layer, YOSO)
        error = (layer.sample(q, k) - chance).norm()
        typical = (chance * (1 - chance) / hashes).sum().sqrt()
        assert 0.5 * typical < error < 2 * typical


def test_many_hashes_give_the_expectation():
    q, k, v = torch.randn(3, 1, 1, 50, 6).double()
    expected = headwise("yoso_e(bits=4)", Pattern.CAUSAL_SELF, heads=1).attend(q, k, v)
    apart = [
        (headwise(f"yoso(hashes={hashes}, bits=4)", Pattern.CAUSAL_SELF, heads=1).attend(q, k, v) - expected).norm()
        for hashes in (8, 2048)
    ]
    assert apart[1] < apart[0] / 6  # 256 times as many hashes: about a sixteenth of the error


@pytest.mark.parametrize("pattern", CAUSAL)
def test_decoding_continues_any_prefix(pattern):
    assert_steps_continue(headwise("yoso(hashes=3, bits=4)", pattern))


def test_the_same_bfloat16_tokens_have_the_same_hashes_one_by_one():
    layer = headwise("yoso(hashes=3, bits=4)", Pattern.CAUSAL_SELF)
    q, k, v = (torch.randn(2, layer.heads, 9, layer.head_dim).bfloat16() for _ in "qkv")
    together, state = layer.attend(q, k, v), layer.begin(k[:, :, :4], v[:, :, :4])
    for t in range(4, 9):
        one, state = layer.advance(q[:, :, t], k[:, :, t], v[:, :, t], state)
        torch.testing.assert_close(one, together[:, :, t])


def test_equal_queries_and_keys_have_finite_outputs_and_gradients():
    layer = headwise("yoso(hashes=4)", Pattern.NONCAUSAL_SELF, heads=1).float()
    x = torch.randn(4, 1, 64, 6, requires_grad=True)
    y = layer.attend(x, x, x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_query_without_a_collision_gives_zero():
    layer = headwise("yoso(hashes=1, bits=2)", Pattern.NONCAUSAL_CROSS, heads=1)
    x = torch.randn(1, 1, 1, 6).double()
    y = layer.attend(x, -x, torch.randn(1, 1, 1, 6).double())
    assert (y == 0).all()


def test_one_huge_token_changes_no_other_bucket():
    """Bucket sums are accumulated separately, not taken as differences of a running sum over all buckets."""
    layer = headwise("yoso(hashes=2, bits=3)", Pattern.CAUSAL_SELF, heads=1).float()
    q, k, v = torch.randn(3, 1, 1, 400, 6)
    huge = v.clone()
    huge[:, :, -1] = 1e30
    assert torch.equal(layer.attend(q, k, v)[:, :, :-1], layer.attend(q, k, huge)[:, :, :-1])


@pytest.mark.parametrize("options", ["bits=0", "bits=99", "hashes=0", "conv=4"])
def test_options_without_a_meaning_are_refused(options):
    with pytest.raises(UsageError):
        headwise(f"yoso({options})", Pattern.NONCAUSAL_SELF)


@pytest.mark.parametrize("pattern", [p for p in Pattern if p is not Pattern.NONCAUSAL_SELF])
def test_a_centred_convolution_is_for_noncausal_self_attention_alone(pattern):
    with pytest.raises(UsageError, match="conv=5"):
        headwise("yoso(conv=5)", pattern)
