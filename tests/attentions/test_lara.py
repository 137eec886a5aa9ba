"""LARA against its formula in loops: landmarks over real tokens, four weightings, and noise in training only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.lara import LARA
from longspan.core.errors import UsageError

NS, NC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS
WEIGHTINGS = ("optimal", "balance", "biased", "query")
PROPOSALS = ("projected", "pooled", "means")


def build(options="", pattern=NS, dim=8, heads=2) -> LARA:
    torch.manual_seed(0)
    layer = attentions.get(f"lara({options})")(dim, heads, pattern).double().eval()
    assert isinstance(layer, LARA)
    for parameter in layer.parameters():  # so that no layer norm is the identity and no bias zero
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


def tensors(n, m, b=2, h=2, c=4):
    torch.manual_seed(n + 100 * m)
    return [torch.randn(b, h, t, c, dtype=torch.float64, requires_grad=True) for t in (n, m, m)]


def summaries(x, landmarks, count, to, proposal):
    """`count` summaries: the means of segments, shorter segments first, or single tokens where there are no more."""
    if proposal == "projected":
        x = to(x[None, None])[0, 0]
    n, r = len(x), min(landmarks, len(x))
    sizes = [n // r + (s >= r - n % r) for s in range(r)]
    means = torch.stack([run.mean(dim=0) for run in x.split(sizes)])
    if proposal == "pooled":
        means = to(means[None, None])[0, 0]
    return means[[s * r // count for s in range(count)]]


def formula(layer, q, k, v):
    """One head of one row without padding, sample by sample."""
    root, count = q.shape[-1] ** 0.5, min(layer.landmarks, max(len(q), len(k)))
    to_q, to_k = (getattr(layer, f"summarise_{which}", None) for which in ("query", "key"))
    center = summaries(q, layer.landmarks, count, to_q, layer.proposal)
    mu = center + summaries(k, layer.landmarks, count, to_k, layer.proposal)

    def xi(x, omega):
        return (x @ omega - x.square().sum(dim=-1) / 2) / root

    f = torch.stack([xi(k, omega).softmax(dim=0) @ v for omega in mu])
    b = torch.stack([xi(mu[r], mu[r]).exp() / xi(mu, mu[r]).exp().sum() for r in range(count)])
    t = (q @ center.T / root).softmax(dim=1)
    query = (q @ mu.T / root).exp()
    alpha = {
        "optimal": (b + layer.beta * (t - t.mean(dim=1, keepdim=True))).clamp(min=1e-8),
        "balance": b.expand_as(t),
        "biased": b * query,
        "query": query,
    }[layer.weighting]
    logits = [xi(q, mu[r]) + xi(k, mu[r]).logsumexp(dim=0) - xi(mu[r], mu[r]) for r in range(count)]
    return (alpha.log() + torch.stack(logits, dim=1)).softmax(dim=1) @ f


def each_head(layer, q, k, v):
    return torch.stack(
        [torch.stack([formula(layer, *u) for u in zip(*row, strict=True)]) for row in zip(q, k, v, strict=True)]
    )


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 20),
    m=st.integers(1, 20),
    landmarks=st.integers(1, 9),
    weighting=st.sampled_from(WEIGHTINGS),
    proposal=st.sampled_from(PROPOSALS),
)
def test_outputs_and_gradients_follow_the_formula(n, m, landmarks, weighting, proposal):
    options = f"landmarks={landmarks}, weighting={weighting}, proposal={proposal}, beta=0.5"
    for layer, (q, k, v) in ((build(options, NC), tensors(n, m)), (build(options, NS), tensors(n, n))):
        found, expected = layer.attend(q, k, v), each_head(layer, q, k, v)
        torch.testing.assert_close(found, expected)
        w = torch.randn_like(found)
        gradients = (torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (found, expected))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


LENGTHS = [(30, 30), (17, 30), (6, 30), (30, 6), (5, 4), (1, 9), (8, 0)]  # number of real queries and keys of each row


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_each_row_of_a_ragged_batch_is_what_it_is_alone(weighting):
    layer = build(f"landmarks=6, weighting={weighting}", NC)
    q, k, v = (u.detach() for u in tensors(33, 35, b=len(LENGTHS)))
    query_mask, key_mask = (
        torch.arange(width) < torch.tensor(lengths)[:, None]
        for width, lengths in zip((33, 35), zip(*LENGTHS, strict=True), strict=True)
    )
    junk = [u.masked_fill(~mask[:, None, :, None], 1e4) for u, mask in ((q, query_mask), (k, key_mask), (v, key_mask))]
    y = layer.attend(*junk, key_mask=key_mask, query_mask=query_mask)
    for row, (n, m) in enumerate(LENGTHS):
        if m == 0:
            assert not y[row].any()
            continue
        alone = torch.stack([formula(layer, q[row, h, :n], k[row, h, :m], v[row, h, :m]) for h in range(2)])
        torch.testing.assert_close(y[row, :, :n], alone)


def test_holes_and_left_padding_are_cut_out():
    layer = build("landmarks=6")
    x = torch.randn(1, 40, 8, dtype=torch.float64)
    mask = torch.rand(1, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[:, :4] = False
    torch.testing.assert_close(layer(x, mask=mask)[0, mask[0]], layer(x[:, mask[0]])[0])


def test_the_amount_of_padding_does_not_matter():
    x, layer = torch.randn(1, 30, 8, dtype=torch.float64), build("landmarks=6")
    mask = torch.arange(30)[None] < 20
    torch.testing.assert_close(layer(x, mask=mask)[:, :20], layer(x[:, :20]))


@pytest.mark.parametrize("pattern, m", [(NS, 25), (NC, 14)])
def test_the_weights_are_the_matrix_that_is_applied(pattern, m):
    layer = build("landmarks=6", pattern)
    q, k, v = tensors(25, m)
    weights = layer.weights(q, k)
    torch.testing.assert_close(weights @ v, layer.attend(q, k, v))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 25, dtype=torch.float64))


def test_one_landmark_gives_every_query_the_same():
    q, k, v = tensors(9, 9)
    y = build("landmarks=1").attend(q, k, v)
    torch.testing.assert_close(y, y[:, :, :1].expand_as(y))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("antithetic", [False, True])
def test_training_is_evaluation_but_for_the_noise(weighting, antithetic, monkeypatch):
    layer = build(f"landmarks=6, weighting={weighting}, antithetic={antithetic}")
    q, k, v = tensors(20, 20)
    evaluated = layer.attend(q, k, v)
    assert not torch.allclose(layer.train().attend(q, k, v), evaluated)
    assert not torch.allclose(layer.attend(q, k, v), layer.attend(q, k, v))
    monkeypatch.setattr(layer, "noise", torch.zeros_like)
    torch.testing.assert_close(layer.attend(q, k, v), evaluated)


def test_an_antithetic_sample_has_a_twin_on_the_other_side(monkeypatch):
    layer = build("landmarks=6, antithetic=True").train()
    q, k, v = tensors(20, 20)
    noise = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    outputs = []
    for sign in (1, -1):
        monkeypatch.setattr(layer, "noise", lambda mu, sign=sign: sign * noise)
        outputs.append(layer.attend(q, k, v))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize(
    "proposal, more", [("means", 0), ("pooled", 2 * (16**2 + 3 * 16)), ("projected", 2 * (16**2 + 3 * 16))]
)
def test_the_parameters_beside_the_projections(proposal, more):
    layer = attentions.get(f"lara(proposal={proposal})")(64, 4, NS)
    assert sum(p.numel() for p in layer.parameters()) == 4 * (64**2 + 64) + more
    assert [type(p) for p in layer.projections()] == [torch.nn.Linear] * 4, "the backbone initialises these alone"


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
def test_landmarks_of_all_queries_rule_out_causal_patterns(pattern):
    with pytest.raises(UsageError, match="cannot run as causal"):
        build("", pattern)


def test_no_landmark_at_all_is_refused():
    with pytest.raises(UsageError, match="landmarks=0"):
        build("landmarks=0")


@pytest.mark.parametrize("pattern, m", [(NS, 25), (NC, 14)])
def test_padded_queries_are_left_out_of_the_weights_as_well(pattern, m):
    layer = build("landmarks=6", pattern)
    q, k, v = tensors(25, m)
    query_mask = torch.arange(25) < torch.tensor([[25], [11]])
    masks = {"query_mask": query_mask, "key_mask": None if pattern is NC else query_mask}
    found, expected = layer.weights(q, k, **masks) @ v, layer.attend(q, k, v, **masks)
    torch.testing.assert_close(found[1, :, :11], expected[1, :, :11])
    unaware = layer.weights(q, k, key_mask=masks["key_mask"]) @ v
    assert not torch.allclose(unaware[1, :, :11], expected[1, :, :11])
