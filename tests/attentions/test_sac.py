"""SAC against a reference written from its definition: edges token by token, and attention along them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.attentions.sac import SAC, Reader
from longspan.core.errors import UsageError
from tests.attentions.allowed import assert_same

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(options="edges=2, width=4", pattern=NS, seed=0):
    torch.manual_seed(seed)
    layer = attentions.get(f"sac({options})")(8, 2, pattern).double().eval()
    assert isinstance(layer, SAC)
    return layer


def torchs_lstm(layer):
    """torch's LSTM with the parameters of the predictor, which use torch's names."""
    lstm = nn.LSTM(8, layer.distance.shape[1], dtype=torch.float64)
    lstm.load_state_dict(layer.reader.state_dict())
    return lstm


def by_hand(layer, row):
    """One row without padding, one edge at a time."""
    n, h = len(row), torchs_lstm(layer)(row.detach())[0]
    q, k, v = (p(row).unflatten(-1, (layer.heads, -1)) for p in (layer.query, layer.key, layer.value))
    y = []
    for i in range(n):
        others = [j for j in range(n) if j != i and (j < i or layer.pattern is NS)]
        score = {
            j: h[i] @ (layer.pointer(row[j].detach()) + layer.distance[max(-16, min(16, j - i)) + 16]) for j in others
        }
        seen = [i, *sorted(others, key=lambda j: -score[j])[: layer.edges]]
        heads = [
            torch.softmax(k[seen, g] @ q[i, g] / q.shape[-1] ** 0.5, dim=0) @ v[seen, g] for g in range(layer.heads)
        ]
        y.append(torch.cat(heads))
    return layer.out(torch.stack(y))


@given(n=st.integers(1, 22), edges=st.integers(1, 5), pattern=st.sampled_from([NS, CS]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=8)
def test_outputs_and_gradients_are_those_of_the_definition(n, edges, pattern, seed):
    layer = build(f"edges={edges}, width=4", pattern, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, n, 8, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(2, n, generator=generator) < 0.8
    mask[:, -1] = True
    expected = torch.cat([by_hand(layer, row[there]) for row, there in zip(x, mask, strict=True)])
    assert_same(layer(x, mask=mask)[mask], expected, [x, layer.value.weight])


def test_its_loss_teaches_the_predictor_alone_to_point_where_queries_look():
    layer, x = build("edges=2, width=16").train(), torch.randn(2, 12, 8).double().requires_grad_()
    layer.query.weight.data *= 20  # queries with sharp preferences
    predictor = [layer.distance, *layer.reader.parameters(), *layer.pointer.parameters()]
    optimizer, losses = torch.optim.Adam(predictor, lr=0.1), []
    for _ in range(25):
        with collecting(layer) as layers:
            layer(x)
            loss = torch.as_tensor(auxiliary_loss(layers))
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, [*predictor, x, layer.query.weight], allow_unused=True)
        assert [gradient is None for gradient in gradients] == [False] * len(predictor) + [True, True]
        for parameter, gradient in zip(predictor, gradients, strict=False):
            parameter.grad = gradient
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


def test_the_predictor_draws_what_torchs_lstm_draws():
    torch.manual_seed(1)
    found, after = Reader(6, 5).state_dict(), torch.rand(1)
    torch.manual_seed(1)
    expected = nn.LSTM(6, 5).state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("options", ["edges=0", "width=0"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="at least 1 edge"):
        build(options)
