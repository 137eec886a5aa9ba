"""Global attention against Luong's scores in loops, in float64, and against softmax attention."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions import global_attention as module
from longspan.attentions.global_attention import GlobalAttention

SCORES = ["dot", "general", "concat"]


def build(score, pattern=Pattern.NONCAUSAL_SELF, **shell) -> GlobalAttention:
    torch.manual_seed(0)
    layer = attentions.get(f"global_attention(score={score})")(8, 2, pattern, **shell).double().eval()
    assert isinstance(layer, GlobalAttention)
    for parameter in layer.parameters():  # so that no matrix is the identity
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


def score(layer, h, q, k):
    """The score of one query and one key of head h, as in the paper."""
    if layer.score == "dot":
        return sum(q[a] * k[a] for a in range(len(q)))
    if layer.score == "general":
        return q @ (layer.between[h] @ k)
    both = torch.cat([layer.of_query[h], layer.of_key[h]])  # W_a of [q; k]
    return layer.reading[h] @ torch.tanh(torch.cat([q, k]) @ both)


def by_hand(layer, x, source, real):
    """One row, pair by pair; `real` marks the keys that are not padding."""
    q, k, v = layer.query(x), layer.key(source), layer.value(source)
    y = []
    for i in range(len(x)):
        heads = []
        for h, (q_h, k_h, v_h) in enumerate(zip(*(u.chunk(2, dim=-1) for u in (q, k, v)), strict=True)):
            seen = [j for j in range(len(source)) if real[j] and (layer.pattern is not Pattern.CAUSAL_SELF or j <= i)]
            shares = [math.e ** score(layer, h, q_h[i], k_h[j]) for j in seen]
            total = sum(shares) if seen else 1
            mean = [share / total * v_h[j] for share, j in zip(shares, seen, strict=True)]
            heads.append(torch.stack(mean).sum(dim=0) if seen else torch.zeros(4, dtype=torch.float64))
        y.append(torch.cat(heads))
    return layer.out(torch.stack(y))


@pytest.mark.parametrize("how", SCORES)
@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 6), m=st.integers(1, 6), pattern=st.sampled_from(list(Pattern)), masked=st.booleans())
def test_it_is_luongs_formula_in_every_pattern(how, n, m, pattern, masked):
    layer, m = build(how, pattern), m if pattern.cross else n
    x, context = torch.randn(2, n, 8).double(), torch.randn(2, m, 8).double() if pattern.cross else None
    mask = torch.rand(2, m) < 0.6 if masked else torch.ones(2, m, dtype=torch.bool)
    masks = {"context_mask" if pattern.cross else "mask": mask if masked else None}
    rows = [by_hand(layer, u, u if context is None else context[b], mask[b]) for b, u in enumerate(x)]
    torch.testing.assert_close(layer(x, context, **masks), torch.stack(rows))


def test_dot_products_with_small_queries_are_softmax_attention():
    layer, softmax = build("dot"), attentions.get("softmax")(8, 2, Pattern.NONCAUSAL_SELF).double()
    softmax.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for parameter in layer.query.parameters():
            parameter.div_(2)  # heads of 4
    x = torch.randn(2, 9, 8).double()
    torch.testing.assert_close(layer(x), softmax(x))


def test_a_general_score_starts_as_dot_products():
    torch.manual_seed(0)
    layer = attentions.get("global_attention(score=general)")(8, 2, Pattern.NONCAUSAL_SELF)
    assert isinstance(layer, GlobalAttention)
    assert torch.equal(layer.between, torch.eye(4).expand(2, -1, -1))


def test_a_few_queries_at_a_time_give_what_all_give(monkeypatch):
    layer, x = build("concat", Pattern.CAUSAL_SELF), torch.randn(2, 11, 8).double().requires_grad_()
    found = []
    for queries in (64, 3):
        monkeypatch.setattr(module, "QUERIES", queries)
        y = layer(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, layer.of_key, layer.reading])))
    torch.testing.assert_close(found[0], found[1])
