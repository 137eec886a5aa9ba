"""Poolingformer against both of its levels written out, token by token in float64, with and without padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.poolingformer import Poolingformer
from longspan.core.errors import UsageError

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(options="", pattern=NS) -> Poolingformer:
    torch.manual_seed(0)
    layer = attentions.get(f"poolingformer({options})")(8, 2, pattern).double().eval()
    assert isinstance(layer, Poolingformer)
    return layer


def attended(q, k, v, seen):
    if not seen:
        return torch.zeros_like(q)
    return torch.softmax(torch.stack([q @ k[j] for j in seen]) / len(q) ** 0.5, dim=0) @ torch.stack(
        [v[j] for j in seen]
    )


def by_hand(layer, x):
    """One row without padding."""
    n, causal, half = len(x), layer.pattern is CS, layer.kernel // 2
    q, k, v = (project(x).chunk(2, dim=-1) for project in (layer.query, layer.key, layer.value))
    near = [
        [j for j in range(n) if (i - layer.window < j <= i if causal else abs(i - j) <= layer.window // 2)]
        for i in range(n)
    ]
    y = [torch.stack([attended(q[h][i], k[h], v[h], near[i]) for i in range(n)]) for h in range(2)]
    weight, blocks = layer.again.weight[..., 0], layer.again.groups
    weight = torch.block_diag(*weight.chunk(blocks)) if blocks > 1 else weight
    maps = (torch.cat(y, dim=-1) @ weight.T + layer.again.bias).chunk(2, dim=-1)
    rows = []
    for h in range(2):
        q2, k2, v2 = maps[h].chunk(3, dim=-1)
        slots = []
        for s in range(0, n, layer.stride):
            inside = [j for j in range(s - half, s + half + 1) if 0 <= j < n]
            if layer.pool == "max":
                pooled = [u[inside].amax(dim=0) for u in (k2, v2)]
            else:
                logits = y[h][s] @ layer.generator[h] if layer.pool == "dynamic" else torch.zeros(layer.kernel).double()
                shares = torch.softmax(torch.stack([logits[j - s + half] for j in inside]), dim=0)
                pooled = [shares @ u[inside] for u in (k2, v2)]
            slots.append((s, *pooled))
        z = []
        for i in range(n):
            if causal:
                seen = [a for a, (s, _, _) in enumerate(slots) if s + half <= i and i - s < layer.pooled_window]
            else:
                seen = [a for a, (s, _, _) in enumerate(slots) if abs(i - s) <= layer.pooled_window // 2]
            z.append(attended(q2[i], [slot[1] for slot in slots], [slot[2] for slot in slots], seen))
        rows.append(y[h] + torch.stack(z))
    return layer.out(torch.cat(rows, dim=-1))


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("pool", ["dynamic", "mean", "max"])
@settings(max_examples=6, deadline=None)
@given(
    n=st.integers(1, 24),
    window=st.integers(1, 9),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 4),
    more=st.integers(0, 9),
    dense=st.booleans(),
)
def test_it_is_a_window_and_then_a_window_of_what_is_pooled(pattern, pool, n, window, kernel, stride, more, dense):
    wide = kernel + 2 * stride + more
    options = f"window={window}, pooled_window={wide}, kernel={kernel}, stride={stride}, pool={pool}, dense={dense}"
    layer, x = build(options, pattern), torch.randn(2, n, 8).double()
    mask = torch.tensor([[True] * n, [i % 3 != 1 for i in range(n)]])
    torch.testing.assert_close(layer(x), torch.stack([by_hand(layer, row) for row in x]))
    torch.testing.assert_close(layer(x, mask=mask)[1][mask[1]], by_hand(layer, x[1][mask[1]]))


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("pool", ["dynamic", "mean", "max"])
def test_gradients_of_tokens_and_parameters_are_those_of_the_formula(pattern, pool):
    layer = build(f"window=5, pooled_window=14, kernel=5, stride=3, pool={pool}", pattern)
    x, mask = torch.randn(1, 19, 8).double().requires_grad_(), torch.arange(19)[None] % 4 != 1
    leaves, w = [x, *layer.parameters()], torch.randn(int(mask.sum()), 8).double()
    found = torch.autograd.grad((layer(x, mask=mask)[mask] * w).sum(), leaves)
    torch.testing.assert_close(found, torch.autograd.grad((by_hand(layer, x[0][mask[0]]) * w).sum(), leaves))


def test_steps_go_on_far_beyond_both_windows():
    layer, x = build("window=5, pooled_window=14, kernel=5, stride=3", CS), torch.randn(2, 60, 8).double()
    _, state = layer.prefill(x[:, :7])
    rows = []
    for t in range(7, 60):
        y, state = layer.step(x[:, t], state)
        rows.append(y)
    torch.testing.assert_close(torch.stack(rows, dim=1), layer(x)[:, 7:])


def test_maps_of_all_channels_make_a_layer_larger():
    few, many = (sum(p.numel() for p in build(f"dense={dense}").parameters()) for dense in (False, True))
    assert few == 4 * (8 * 8 + 8) + 3 * 8 * 4 + 3 * 8 + 8 * 5
    assert many == few + 3 * 8 * 4


@pytest.mark.parametrize("options", ["window=0", "kernel=4", "pooled_window=12", "stride=0"])
def test_windows_without_room_are_refused(options):
    with pytest.raises(UsageError, match="poolingformer needs"):
        build(options)
