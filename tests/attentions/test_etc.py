"""ETC: windows, global tokens and labels pair by pair, and a global stream that stays causal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.etc import ETC
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import labels
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, assert_steps_continue, holes, pairs, tensors

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def expected_of(layer, q, k, v, mask):
    """The formula with a label for each pair, looked up one by one."""
    b, h, n, c = q.shape
    m = layer.max_distance

    def is_global(i):
        return i % layer.stride == 0 and i // layer.stride < layer.global_tokens

    def sees(row, head, i, j):
        near = abs(i - j) <= layer.radius or is_global(i) or is_global(j)
        return near and (j <= i or not layer.pattern.causal)

    def label(i, j):
        if is_global(i) != is_global(j):
            return 2 * m + 1
        ahead = (j - i) // layer.stride if is_global(i) else j - i
        return min(ahead, m) if ahead >= 0 else m + min(-ahead, m)

    scores = q @ k.mT
    if m:
        terms = [
            [
                q[:, :, i] * (layer.a_global if is_global(i) else layer.a)[label(i, j)]
                for j in range(n)
            ]
            for i in range(n)
        ]  # fmt: skip
        products = torch.stack([torch.stack(row, dim=2) for row in terms], dim=2).sum(dim=-1)
        biases = [[(layer.b_global if is_global(i) else layer.b)[label(i, j)] for j in range(n)] for i in range(n)]
        scores = scores + products + torch.stack([torch.stack(row, dim=-1) for row in biases], dim=1)
    allowed = pairs(sees, b, h, n, mask)
    scores = scores / c**0.5
    weights = (scores - scores.detach().amax(dim=-1, keepdim=True)).exp() * allowed
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1) @ v


@given(
    n=st.integers(1, 18),
    radius=st.integers(0, 5),
    count=st.integers(0, 4),
    stride=st.integers(1, 6),
    distance=st.integers(0, 3),
    pattern=st.sampled_from([NS, CS]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=20)
def test_outputs_gradients_and_weights_follow_windows_and_labels(n, radius, count, stride, distance, pattern, seed):
    spec = f"etc(radius={radius}, global_tokens={count}, stride={stride}, max_distance={distance})"
    layer = headwise(spec, pattern, channels=4)
    assert isinstance(layer, ETC)
    leaves = tensors(2, 2, n, 4, seed)
    if distance:
        for table in (layer.b, layer.b_global):
            torch.nn.init.normal_(table)
        leaves += [layer.a, layer.b]
        leaves += [layer.a_global, layer.b_global] if count else []
    q, k, v, *_ = leaves
    mask = holes(2, n, seed)
    expected = expected_of(layer, q, k, v, mask) + 0 * sum(leaf.sum() for leaf in leaves)  # unused leaves get zeros
    assert_same(layer.attend(q, k, v, key_mask=mask), expected, leaves)
    torch.testing.assert_close(layer.weights(q, k, key_mask=mask) @ v, expected)


@pytest.mark.parametrize("pattern", [NS, CS])
@pytest.mark.parametrize("n", [1, 12, 29])  # fewer and more tokens than positions of global tokens
@pytest.mark.parametrize("seed", [0, 1, 2])  # without padding, with holes, and with a row of padding only
def test_global_queries_that_pool_ordinary_keys_follow_the_formula_too(seed, n, pattern, monkeypatch):
    layer = headwise("etc(radius=2, global_tokens=4, stride=5, max_distance=2)", pattern, channels=4)
    assert isinstance(layer, ETC)
    for table in (layer.b, layer.b_global):
        torch.nn.init.normal_(table)
    q, k, v = tensors(2, 2, n, 4, seed)
    leaves, mask = [q, k, v, layer.a, layer.b, layer.a_global, layer.b_global], holes(2, n, seed)
    monkeypatch.setattr(labels.landmark, "is_faster", lambda *x: True)
    pool, calls = labels.landmark.landmark_pool, []
    as_defined = lambda *x, **how: calls.append(1) or pool(*x, **how | {"impl": "reference"})  # noqa: E731
    monkeypatch.setattr(labels.landmark, "landmark_pool", as_defined)
    found = layer.attend(q, k, v, key_mask=mask)
    assert calls
    expected = expected_of(layer, q, k, v, mask) + 0 * sum(leaf.sum() for leaf in leaves)  # unused leaves get zeros
    assert_same(found, expected, leaves)


@pytest.mark.parametrize("options", ["", "max_distance=0", "radius=3, stride=4", "radius=0, global_tokens=2, stride=5"])
def test_decoding_continues_any_prefix(options):
    assert_steps_continue(headwise(f"etc({options})", CS), n=17)


def test_two_layers_join_all_tokens_and_leak_none():
    layer = headwise("etc(radius=2, stride=8)", CS)
    x = torch.randn(1, 40, 12).double().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(layer(x))[0, 30].sum(), x)
    assert gradient[0, :25].abs().sum(dim=-1).gt(0).all(), "up to the last global token before it"
    assert not gradient[0, 31:].any()


@pytest.mark.parametrize("longest, expected", [(None, 64), (64, 1), (4096, 64), (10_000, 157)])
def test_the_stride_follows_from_the_greatest_length(longest, expected):
    assert attentions.get("etc")(8, 2, NS, max_length=longest).stride == expected
    assert attentions.get("etc(stride=5)")(8, 2, NS, max_length=longest).stride == 5


@pytest.mark.parametrize("distance", [0, 3])
def test_labels_add_as_many_parameters_as_it_says(distance):
    layer, softmax = (attentions.get(spec)(8, 2, NS) for spec in (f"etc(max_distance={distance})", "softmax"))
    found = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in softmax.parameters())
    assert found == (2 * (2 * distance + 2) * (8 + 2) if distance else 0)


@pytest.mark.parametrize("options", ["radius=-1", "global_tokens=-1", "stride=0", "max_distance=-1"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="of at least 1, got"):
        headwise(f"etc({options})", CS)


@pytest.mark.parametrize("pattern", [NS, CS])
def test_under_autocast_single_precision_values_give_single_precision(pattern):
    layer = ETC(8, 2, pattern, radius=3, stride=4, max_length=20)
    q, k, v = torch.randn(3, 2, 2, 18, 4).unbind(0)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer.attend(q, k, v)
    assert y.dtype is torch.float32
    torch.testing.assert_close(y, layer.attend(q, k, v), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(("stride", "n"), [(1, 3), (1, 30), (4, 4), (4, 17), (7, 5)])
def test_rows_of_global_tokens_stand_where_these_are(stride, n):
    layer = ETC(8, 2, NS, stride=stride, global_tokens=5)
    places = range(0, min(n, 5 * stride), stride)
    y = layer._with_global(torch.zeros(1, 2, n, 4), torch.ones(1, 2, len(places), 4))
    assert y.shape[2] == n
    assert [i for i in range(n) if y[0, 0, i, 0]] == list(places)
