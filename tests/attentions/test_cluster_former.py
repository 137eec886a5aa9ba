"""Cluster-Former against a reference written from its definition, token by token in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.attentions.cluster_former import ClusterFormer
from longspan.core.errors import UsageError
from tests.attentions.allowed import assert_same

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(options="clusters=3, window=4, overlap=2", pattern=NS, seed=0, **shell):
    torch.manual_seed(seed)
    layer = attentions.get(f"cluster_former({options})")(8, 2, pattern, **shell).double().eval()
    assert isinstance(layer, ClusterFormer)
    return layer


def by_hand(layer, x, mask):
    """Sorted lists and windows of them, one token at a time."""
    rows = []
    for row, there in zip(x, mask, strict=True):
        cluster = [int((u - layer.centroids).square().sum(dim=-1).argmin()) for u in row]
        tokens = sorted((i for i in range(len(row)) if there[i]), key=lambda i: (cluster[i], i))
        rank = {i: place for place, i in enumerate(tokens)}
        q, k, v = (p(row).unflatten(-1, (layer.heads, -1)) for p in (layer.query, layer.key, layer.value))
        y = torch.zeros_like(q)
        for i in tokens:
            if layer.pattern is CS:
                seen = [j for j in tokens if cluster[i] == cluster[j] and j <= i][-layer.window :]
            elif layer.strict:
                half = layer.window // 2
                seen = [j for j in tokens if cluster[i] == cluster[j] and abs(rank[i] - rank[j]) <= half]
            else:
                block, more = layer.window - layer.overlap, layer.overlap // 2
                start = rank[i] // block * block
                seen = tokens[max(start - more, 0) : start + block + more]
            for h in range(layer.heads):
                y[i, h] = torch.softmax(k[seen, h] @ q[i, h] / q.shape[-1] ** 0.5, dim=0) @ v[seen, h]
        rows.append(layer.out(y.flatten(1)))
    return torch.stack(rows)


@given(
    pattern=st.sampled_from([NS, CS]),
    n=st.integers(1, 20),
    clusters=st.integers(1, 5),
    window=st.integers(3, 9),
    strict=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_outputs_and_gradients_are_those_of_the_definition(pattern, n, clusters, window, strict, seed):
    layer = build(f"clusters={clusters}, window={window}, overlap=2, strict={strict}", pattern, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, n, 8, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(2, n, generator=generator) < 0.8
    assert_same(layer(x, mask=mask)[mask], by_hand(layer, x, mask)[mask], [x, layer.value.weight])


def test_decoding_continues_any_prefix():
    layer = build(pattern=CS)
    x, mask = torch.randn(2, 20, 8).double(), torch.ones(2, 20, dtype=torch.bool)
    mask[1, 2:5] = False
    for prefix in (0, 1, 7, 19):
        _, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix])
        for t in range(prefix, 20):
            y, state = layer.step(x[:, t], state)
            for row in range(2):
                tokens = torch.cat([x[row, :prefix][mask[row, :prefix]], x[row, prefix : t + 1]])
                torch.testing.assert_close(y[row], layer(tokens[None])[0, -1])


def test_its_loss_is_that_of_k_means_and_moves_the_centroids_alone():
    layer, x = build().train(), torch.randn(3, 30, 8).double().requires_grad_()
    mask = torch.arange(30) < torch.tensor([[30], [12], [1]])
    with collecting(layer) as layers:
        layer(x, mask=mask)
        loss = torch.as_tensor(auxiliary_loss(layers))
    expected = torch.cdist(x[mask], layer.centroids).amin(dim=1).square().mean() / 8
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, [layer.centroids, x, layer.query.weight], allow_unused=True)
    assert [gradient is None for gradient in gradients] == [False, True, True]


def test_descending_it_finds_clusters():
    layer = build("clusters=4").train()
    centres = 5 * torch.randn(4, 8).double()
    layer.centroids.data.copy_(centres + torch.randn(4, 8))
    optimizer = torch.optim.SGD([layer.centroids], lr=5.0)
    for _ in range(60):
        x = centres[torch.randint(4, (2, 50))] + 0.1 * torch.randn(2, 50, 8)
        with collecting(layer) as layers:
            layer(x)
            optimizer.zero_grad()
            torch.as_tensor(auxiliary_loss(layers)).backward()
        optimizer.step()
    assert torch.cdist(centres, layer.centroids).amin(dim=1).max() < 0.5


@pytest.mark.parametrize("longest, clusters", [(None, 64), (1, 1), (160, 10), (16_384, 64)])
def test_short_sequences_have_fewer_clusters(longest, clusters):
    assert build("", max_length=longest).clusters == clusters
    assert build("clusters=7", max_length=longest).clusters == 7


@pytest.mark.parametrize("options", ["clusters=0", "window=4, overlap=4", "overlap=3", "overlap=-2"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="smaller than the window, got"):
        build(options)
