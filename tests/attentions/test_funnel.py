"""The Funnel Transformer against its formula written out, pool by pool in float64, and its behaviour in a slot."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.funnel import Funnel
from longspan.core.errors import UnsupportedPattern, UsageError

NS, NC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS


def build(options="", pattern=NS) -> Funnel:
    torch.manual_seed(0)
    layer = attentions.get(f"funnel({options})")(8, 2, pattern, inner=12).double().eval()
    assert isinstance(layer, Funnel)
    return layer


def pools(layer, n):
    """The tokens of each pool."""
    first, rest = (1, [[0]]) if layer.separate_cls else (0, [])
    return rest + [list(range(i, min(i + layer.stride, n))) for i in range(first, n, layer.stride)]


def pooled(layer, x):
    return torch.stack([x[p].amax(dim=0) if layer.pool == "max" else x[p].mean(dim=0) for p in pools(layer, len(x))])


def by_hand(layer, x, context=None):
    """One row without padding: the score of each pool and key alone, with the distance between their first tokens."""
    source, self_attention = (x, True) if context is None else (context, False)
    places = [p[0] for p in pools(layer, len(source))] if not layer.pool_q_only else list(range(len(source)))
    keys = source if layer.pool_q_only else pooled(layer, source)
    q, k, v = (
        project(u).unflatten(-1, (2, -1))
        for project, u in ((layer.query, pooled(layer, x)), (layer.key, keys), (layer.value, keys))
    )
    frequency = torch.tensor([10_000 ** (-d / 8) for d in range(0, 8, 2)]).double()
    y = torch.empty(len(x), 12).double()
    for s, tokens in enumerate(pools(layer, len(x))):
        scores = torch.einsum("hc,jhc->hj", q[s], k)
        if self_attention:
            scores = scores + torch.einsum("hc,jhc->hj", layer.u, k)
            for j, place in enumerate(places):
                if layer.separate_cls and 0 in (s, j):
                    continue
                angle = (tokens[0] - place) * frequency
                r = layer.distance(torch.cat([angle.sin(), angle.cos()])).unflatten(-1, (2, -1))
                scores[:, j] += ((q[s] + layer.w) * r).sum(dim=-1)
                if layer.types is not None:
                    scores[:, j] += ((q[s] + layer.z) * layer.types[1]).sum(dim=-1)
        p = torch.softmax(scores / 6**0.5, dim=-1)
        y[tokens] = torch.einsum("hj,jhc->hc", p, v).flatten()
    return layer.out(y)


OPTIONS = {
    "stride": st.integers(1, 4),
    "pool": st.sampled_from(["mean", "max"]),
    "pool_q_only": st.booleans(),
    "separate_cls": st.booleans(),
}


@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 9), options=st.fixed_dictionaries({**OPTIONS, "token_types": st.booleans()}))
def test_a_pool_asks_and_its_tokens_get_the_answer(n, options):
    layer = build(", ".join(f"{name}={value}" for name, value in options.items()))
    x = torch.randn(2, n, 8).double()
    mask = torch.tensor([[True] * n, [i % 3 != 1 for i in range(n)]])
    torch.testing.assert_close(layer(x), torch.stack([by_hand(layer, row) for row in x]))
    torch.testing.assert_close(layer(x, mask=mask)[1][mask[1]], by_hand(layer, x[1][mask[1]]))


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 9), m=st.integers(1, 9), options=st.fixed_dictionaries(OPTIONS))
def test_across_two_sequences_it_is_softmax_attention_with_fewer_queries(n, m, options):
    layer = build(", ".join(f"{name}={value}" for name, value in options.items()), NC)
    x, context = torch.randn(2, n, 8).double(), torch.randn(2, m, 8).double()
    mask, context_mask = (torch.tensor([[True] * k, [i % 3 != 1 for i in range(k)]]) for k in (n, m))
    expected = torch.stack([by_hand(layer, *rows) for rows in zip(x, context, strict=True)])
    torch.testing.assert_close(layer(x, context), expected)
    found = layer(x, context, mask=mask, context_mask=context_mask)[1][mask[1]]
    torch.testing.assert_close(found, by_hand(layer, x[1][mask[1]], context[1][context_mask[1]]))


def test_the_last_token_is_not_cut():
    """In the released code it is, whenever the first token is kept separate and the length is even."""
    layer, x = build(), torch.randn(1, 8, 8).double()
    short, _ = layer.shortened(x)
    assert short.shape[1] == 5
    torch.testing.assert_close(layer(x)[:, -1], short[:, -1])
    torch.testing.assert_close(layer.pooled(x)[0][:, -1], x[:, -1])


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_padding_is_not_pooled_and_a_pool_without_a_token_is_known(pool):
    layer, x = build(f"pool={pool}, separate_cls=False"), torch.randn(1, 6, 8).double()
    mask = torch.tensor([[True, True, True, False, False, False]])
    pools, filled = layer.pooled(x, mask)
    assert filled.tolist() == [[True, True, False]]
    torch.testing.assert_close(pools[:, 1], x[:, 2])
    assert layer.shortened(x, mask=mask)[1].tolist() == filled.tolist()


def test_tokens_of_two_types_are_told_apart():
    layer = build("token_types=True, separate_cls=False")
    q, k, v = (torch.randn(1, 2, n, 6).double() for n in (2, 4, 4))
    same = torch.tensor([[[True, True, False, False], [False, False, True, True]]])
    all_same, told = layer.mix(q, k, v, step=2), layer.mix(q, k, v, step=2, same=same)
    assert (all_same - told).abs().max() > 1e-3
    torch.testing.assert_close(all_same, layer.mix(q, k, v, step=2, same=torch.ones_like(same)))


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
def test_what_pools_queries_is_not_causal(pattern):
    with pytest.raises(UnsupportedPattern, match="Funnel cannot run as causal"):
        build(pattern=pattern)


@pytest.mark.parametrize(
    "options, pattern, sentence",
    [("stride=0", NS, "at least 1 token, got stride=0"), ("token_types=True", NC, "leave them out as noncausal_cross")],
)
def test_options_that_make_no_sense_are_refused(options, pattern, sentence):
    with pytest.raises(UsageError, match=sentence):
        build(options, pattern)
