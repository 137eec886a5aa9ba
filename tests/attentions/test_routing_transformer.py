"""The Routing Transformer: clusters query by query, causal choices, moving centroids, and the auxiliary loss."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.attentions.routing_transformer import RoutingTransformer
from longspan.core.errors import UsageError
from tests.attentions import parity
from tests.attentions.allowed import assert_same

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


def build(options="clusters=3, window=4", pattern=NS, seed=0, **shell):
    torch.manual_seed(seed)
    layer = attentions.get(f"routing_transformer({options})")(8, 2, pattern, **shell).double().eval()
    assert isinstance(layer, RoutingTransformer)
    return layer


def softmax_over(q, k, v):
    return torch.softmax(k @ q / len(q) ** 0.5, dim=0) @ v


def by_hand(layer, q, k, v, q_mask, k_mask):
    """One query at a time."""
    y = torch.zeros_like(q)
    for row in range(len(q)):
        for h in range(layer.heads):
            s_q, s_k = (F.normalize(u[row, h].detach(), dim=-1) @ layer.means[h].T for u in (q, k))
            queries, tokens = (mask[row].nonzero()[:, 0].tolist() for mask in (q_mask, k_mask))
            near = [sorted(tokens, key=lambda j: -s_k[j, g])[: layer.context_window] for g in range(layer.clusters)]
            for i in queries:
                if layer.pattern is CS:
                    mates = [j for j in tokens if j <= i and s_k[j].argmax() == s_q[i].argmax()][-layer.window :]
                    mates = mates[:-1] or [i]
                    keys = k[row, h, mates]
                    keys = keys / (keys.square().sum(dim=-1, keepdim=True) + 1e-6 * keys.shape[-1]).sqrt()
                    y[row, h, i] = softmax_over(q[row, h, i], keys, v[row, h, mates])
                    continue
                if layer.pattern is CC:
                    mine = [int(s_q[i].argmax())]
                else:
                    first = [sorted(queries, key=lambda j: -s_q[j, g])[: layer.window] for g in range(layer.clusters)]
                    mine = [g for g in range(layer.clusters) if i in first[g]]
                if near[0] and mine:
                    seen = [softmax_over(q[row, h, i], k[row, h, near[g]], v[row, h, near[g]]) for g in mine]
                    y[row, h, i] = sum(seen) / len(seen)
    return y


@given(
    pattern=st.sampled_from([NS, CS, NC, CC]),
    n=st.integers(1, 14),
    m=st.integers(1, 9),
    clusters=st.integers(1, 4),
    window=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_outputs_and_gradients_follow_the_formula(pattern, n, m, clusters, window, seed):
    layer = build(f"clusters={clusters}, window={window}, context_window=3", pattern, seed)
    m = m if pattern.cross else n
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 2, t, 4, dtype=torch.float64, generator=generator).requires_grad_() for t in (n, m, m))
    k = q if pattern is CS else k
    k_mask = torch.rand(2, m, generator=generator) < 0.8
    q_mask = torch.ones(2, n, dtype=torch.bool) if pattern.cross else k_mask
    found = layer.attend(q, k, v, key_mask=k_mask, query_mask=q_mask)
    leaves = [q, v] if pattern is CS else [q, k, v]
    expected = by_hand(layer, q, k, v, q_mask, k_mask) + 0 * sum(leaf.sum() for leaf in leaves)
    assert_same(found, expected, leaves)


@pytest.mark.parametrize("name", ["ns_b2h2n24d6_C3w8", "nc_b2h1n12M20d8_C2w6cw10"])
@pytest.mark.skipif(not parity.FULL.is_dir(), reason="needs the whole collection of vectors")
def test_the_auxiliary_loss_is_that_of_the_package(name):
    vector = parity.read(parity.FULL / f"routing_transformer__{name}.npz")
    sizes = vector.meta["hyperparameters"]
    layer = attentions.get(f"routing_transformer(clusters={sizes['num_clusters']})")
    width = sizes["heads"] * vector.arrays["q"].shape[-1]
    layer = layer(width, sizes["heads"], vector.pattern).double()
    assert isinstance(layer, RoutingTransformer)
    layer.means.copy_(vector.arrays["param_means"])
    tokens = [(u, layer.similarity(u), None) for u in (vector.arrays["q"], vector.arrays["k"])]
    torch.testing.assert_close(layer._pull(tokens), vector.arrays["aux_loss"])


@pytest.mark.parametrize("pattern", [NS, CS, CC])
def test_means_move_towards_their_tokens_only_while_the_loss_is_collected(pattern):
    layer, x = build(pattern=pattern).train(), torch.randn(3, 40, 8).double()
    context = torch.randn(3, 20, 8).double() if pattern.cross else None
    before = layer.means.clone()
    layer(x, context)
    assert torch.equal(layer.means, before)
    losses = []
    for _ in range(150):
        with collecting(layer) as layers:
            layer(x, context)
            losses.append(torch.as_tensor(auxiliary_loss(layers)).item())
    assert losses[-1] < 0.95 * losses[0]
    layer.eval()
    with collecting(layer) as layers:
        moved = layer.means.clone()
        layer(x, context)
        assert auxiliary_loss(layers) == 0
    assert torch.equal(layer.means, moved)


def test_padding_neither_moves_the_means_nor_counts_in_the_loss():
    x, mask = torch.randn(2, 12, 8).double(), torch.arange(12) < torch.tensor([[12], [7]])
    found = []
    for tokens in (x, torch.where(mask[..., None], x, 100.0)):
        layer = build().train()
        with collecting(layer) as layers:
            layer(tokens, mask=mask)
            found.append((auxiliary_loss(layers), layer.means))
    torch.testing.assert_close(found[0], found[1])


def test_causally_and_under_autocast_every_token_keeps_its_cluster():
    torch.manual_seed(0)
    layer = attentions.get("routing_transformer")(64, 4, CS)
    x = torch.randn(2, 500, 64)
    _, exact = layer.prefill(x)
    with torch.autocast("cpu", torch.bfloat16):
        _, coarse = layer.prefill(x)
    assert coarse.k.dtype == torch.bfloat16
    assert torch.equal(coarse.cluster, exact.cluster)


@pytest.mark.parametrize("pattern", [NS, NC])
def test_under_autocast_every_cluster_has_the_tokens_that_it_has_without(pattern):
    torch.manual_seed(0)
    layer = attentions.get("routing_transformer")(64, 2, pattern, max_length=1000, max_context=1000).eval()
    x = torch.randn(2, 1000, 64)
    context = torch.randn(2, 1000, 64) if pattern.cross else None
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x, context)
    exact = layer(x, context)
    assert (y - exact).norm() < 0.01 * exact.norm()  # 0.036 if clusters are chosen from rounded queries


@pytest.mark.parametrize("longest, clusters, window", [(None, 16, 256), (1024, 32, 32), (1000, 32, 32), (1, 1, 1)])
def test_clusters_are_the_root_of_the_greatest_length(longest, clusters, window):
    layer = attentions.get("routing_transformer")(8, 2, NS, max_length=longest)
    assert isinstance(layer, RoutingTransformer)
    assert (layer.clusters, layer.window) == (clusters, window)


@pytest.mark.parametrize(
    "options, pattern", [("clusters=0", NS), ("window=0", CS), ("memory=-1", NS), ("memory=1", CS), ("eps=-1", NC)]
)
def test_impossible_options_are_refused(options, pattern):
    with pytest.raises(UsageError, match="got"):
        build(options, pattern)
