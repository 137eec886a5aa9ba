"""Local attention: the neighbourhood, its edges, and a decoding state that does not grow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout

SPECS = [
    "local(window=4)",
    "local(window=1)",
    "local(window=5, shape=blocks)",
    "local(window=5, shape=blocks, overlap=2)",
    "local(window=5, shape=blocks, overlap=2, bias_table=True)",
]


def build(spec, pattern=Pattern.CAUSAL_SELF, dim=12, heads=3):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, pattern).double().eval()


def tensors(n, b=2, h=2, c=4, e=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, c), (b, h, n, c), (b, h, n, e))
    return [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


def dense(q, k, v, near, key_mask=None):
    """The formula, one query at a time."""
    rows = []
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            keys = [j for j in range(k.shape[2]) if near(i, j) and (key_mask is None or key_mask[b, j])]
            p = torch.softmax(torch.einsum("hc,hjc->hj", q[b, :, i], k[b, :, keys]) / q.shape[3] ** 0.5, dim=-1)
            rows.append(torch.einsum("hj,hje->he", p, v[b, :, keys]))
    return torch.stack(rows).unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


NEIGHBOURHOODS = {
    ("local(window=3)", Pattern.NONCAUSAL_SELF): lambda i, j: abs(i - j) <= 3,
    ("local(window=3)", Pattern.CAUSAL_SELF): lambda i, j: 0 <= i - j < 3,
    ("local(window=4, shape=blocks)", Pattern.NONCAUSAL_SELF): lambda i, j: i // 4 == j // 4,
    ("local(window=4, shape=blocks)", Pattern.CAUSAL_SELF): lambda i, j: i // 4 == j // 4 and j <= i,
    ("local(window=4, shape=blocks, overlap=1)", Pattern.CAUSAL_SELF): lambda i, j: i // 4 * 4 - 1 <= j <= i,
}


@pytest.mark.parametrize("spec, pattern", NEIGHBOURHOODS)
@pytest.mark.parametrize("n", [1, 2, 9, 70])
def test_outputs_and_gradients_follow_the_formula(spec, pattern, n):
    q, k, v = tensors(n)
    mask = torch.ones(2, n, dtype=torch.bool)
    mask[1, max(1, n - 2) :] = False
    layer = build(spec, pattern, dim=8, heads=2)
    found = layer.attend(q, k, v, key_mask=mask)
    expected = dense(q, k, v, NEIGHBOURHOODS[spec, pattern], mask)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * w).sum(), (q, k, v)),
        torch.autograd.grad((expected * w).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("spec", SPECS)
def test_decoding_continues_any_prefix(spec):
    layer = build(spec)
    x = torch.randn(3, 14, 12, dtype=torch.float64)
    full = layer(x)
    for start in (0, 1, 6, 13):
        y, state = layer.prefill(x[:, :start])
        torch.testing.assert_close(y, full[:, :start])
        for t in range(start, 14):
            y_t, state = layer.step(x[:, t], state)
            torch.testing.assert_close(y_t, full[:, t])


@pytest.mark.parametrize("spec", SPECS)
def test_padding_does_not_advance_the_state(spec):
    layer = build(spec)
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0]]).bool()
    following = torch.randn(2, 3, 12, dtype=torch.float64)
    _, state = layer.prefill(x.masked_fill(~mask[..., None], 1e4), mask=mask)
    for t in range(3):
        y_t, state = layer.step(following[:, t], state)
        for row in range(2):
            compact = torch.cat([x[row][mask[row]], following[row, : t + 1]])[None]
            torch.testing.assert_close(y_t[row], layer(compact)[0, -1])


def test_the_decoding_state_does_not_grow():
    layer = build("local(window=4)")
    _, state = layer.prefill(torch.randn(2, 3, 12, dtype=torch.float64))
    before = state.nbytes
    for _ in range(20):
        _, state = layer.step(torch.randn(2, 12, dtype=torch.float64), state)
    assert state.nbytes == before
    assert state.select(torch.tensor([1])).k.shape == (1, 3, 4, 4)


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_row_without_a_real_neighbour_is_zero_with_zero_gradient(pattern):
    q, k, v = tensors(40)
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0, 10:] = False  # from position 14 on no real token is within the window
    mask[1] = False
    y = build("local(window=4)", pattern, dim=8, heads=2).attend(q, k, v, key_mask=mask)
    assert torch.equal(y[0, :, 20:], torch.zeros_like(y[0, :, 20:]))
    assert torch.equal(y[1], torch.zeros_like(y[1]))
    y.sum().backward()
    for leaf in (q, k, v):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert not leaf.grad[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [1e4, -1e4, 0.5])
def test_extreme_inputs_stay_finite(dtype, fill):
    layer = build("local(window=4)").to(dtype)
    x = torch.full((2, 63, 12), fill, dtype=dtype)
    assert layer(x).isfinite().all()


def test_dropout_acts_on_the_weights_in_training_only():
    layer = attentions.get("local(window=4)")(12, 3, Pattern.NONCAUSAL_SELF, dropout=0.5)
    x = torch.randn(2, 30, 12)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    "spec", ["local(window=0)", "local(overlap=2)", "local(shape=blocks, overlap=-1)", "local(bias_table=True)"]
)
def test_impossible_options_are_refused(spec):
    with pytest.raises(UsageError, match="got"):
        build(spec)


@pytest.mark.parametrize("pattern", list(attentions.SELF_PATTERNS))
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_packed_tokens_see_by_where_they_stand_also_around_holes(pattern, data):
    n, window = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 40))
    layer = attentions.get(f"local(window={window})")(8, 2, pattern).double()
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3 * n, max_size=3 * n))).reshape(3, n)
    mask[:, 0] = True
    x = torch.randn(3, n, 8, dtype=torch.float64)
    layout = Layout.of_mask(mask)
    torch.testing.assert_close(layer.packed(layout.pack(x), layout), layout.pack(layer(x, mask=mask)))


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_blocks_are_counted_from_the_first_token_of_a_row(pattern):
    torch.manual_seed(0)
    layer = attentions.get("local(window=4, shape=blocks, overlap=2)")(8, 2, pattern).double().eval()
    x, mask = torch.randn(2, 19, 8).double(), torch.ones(2, 19, dtype=torch.bool)
    mask[1, :6] = False
    torch.testing.assert_close(layer(x, mask=mask)[1, 6:], layer(x[1:, 6:])[0])
