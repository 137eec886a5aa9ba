"""CAB's Performer: a lower bound on the denominator, changing projections, and masks of other rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UnsupportedPattern, UsageError
from longspan.kernels.favor import draw_projection
from tests.attentions.agreement import assert_steps_continue

DECLARED = [Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS]


def build(pattern=Pattern.NONCAUSAL_SELF, features=7, heads=3, **shell):
    torch.manual_seed(0)
    return attentions.get(f"cab_performer(features={features})")(4 * heads, heads, pattern, **shell).double().eval()


def dense(w, q, k, v, visible):
    """`visible` [b h 1 m]: the keys that each head of each row sees."""

    def phi(x, over):
        x = x / x.shape[-1] ** 0.25
        projected = x @ w.mT
        return (projected - projected.amax(dim=over, keepdim=True) - (x * x).sum(-1, True) / 2).exp() + 1e-4

    weights = phi(q, -1) @ phi(k, (-1, -2)).mT / w.shape[1] * visible
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=0.1)


@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 30), m=st.integers(1, 30), rows=st.integers(1, 3), heads=st.integers(1, 3))
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_dense_formula_with_the_mask_of_another_row(n, m, rows, heads, masked):
    layer = build(Pattern.NONCAUSAL_CROSS, heads=heads)
    q, k, v = (torch.randn(rows, heads, t, 4, dtype=torch.float64).requires_grad_() for t in (n, m, m))
    mask = torch.rand(rows, m) < 0.7 if masked else torch.ones(rows, m, dtype=torch.bool)
    applied = [[mask[(b * heads + h) % rows] for h in range(heads)] for b in range(rows)]
    visible = torch.stack([torch.stack(row) for row in applied])[:, :, None]
    found = layer.attend(q, k, v, key_mask=mask if masked else None)
    expected = dense(layer.projection, q, k, v, visible)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_outputs_shrink_where_the_sum_is_below_its_bound():
    layer = build()
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 20, 4).double()
    ones = torch.ones(2, 3, 20, 1).double()
    small = layer.attend(q, 4 * k, ones)  # distant keys have almost no features
    assert (small <= 1 + 1e-12).all()
    assert small.median() < 0.5


@pytest.mark.parametrize("heads, mixed", [(1, False), (3, True)])
def test_with_more_rows_and_heads_than_one_a_row_is_masked_by_its_neighbours(heads, mixed):
    layer = build(heads=heads)
    x = torch.randn(2, 9, 4 * heads).double()
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    apart = (layer(x, mask=mask)[1] - layer(x[1:], mask=mask[1:])[0]).abs().max()
    assert (apart > 1e-3) == mixed


def test_the_content_of_padding_matters_through_the_maximum():
    layer = build()
    x = torch.randn(1, 9, 12).double()
    mask = torch.arange(9)[None] < 6
    changed = x.clone()
    changed[:, 6:] *= 5
    assert (layer(x, mask=mask) - layer(changed, mask=mask))[:, :6].abs().max() > 1e-4


def test_every_training_step_has_a_projection_of_its_own_and_evaluation_always_the_same():
    layer = build()
    x = torch.randn(1, 9, 12).double()
    assert torch.equal(layer(x), layer(x))
    assert not torch.equal(layer.train()(x), layer(x))
    other = build()
    other.projection.normal_()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x), other(x))


def test_rows_of_a_block_are_orthogonal_and_heads_have_their_own():
    torch.manual_seed(0)
    w = draw_projection(10, 4, heads=(3,), uniform=False).double()
    assert w.shape == (3, 10, 4)
    for block in w.split(4, dim=1):
        products = block @ block.mT
        diagonal = products.diagonal(dim1=1, dim2=2).diag_embed()
        torch.testing.assert_close(products, diagonal, rtol=0, atol=1e-5)  # drawn in single precision
    assert not torch.equal(w[0], w[1])


def test_decoding_continues_any_prefix():
    assert_steps_continue(build(Pattern.CAUSAL_CROSS))


def test_decoding_in_training_mode_runs_the_whole_history():
    layer = build(Pattern.CAUSAL_CROSS).train()
    x, context = torch.randn(2, 5, 12).double(), torch.randn(2, 4, 12).double()
    _, state = layer.prefill(x, context)
    y, _ = layer.step(x[:, 0], state)
    assert y.shape == (2, 12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("n", [1, 2, 200])
@pytest.mark.parametrize("pattern", DECLARED)
def test_any_length_runs_forward_and_backward(pattern, n, training):
    layer = build(pattern).train(training)
    x = torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 7, 12).double() if pattern.cross else None
    hidden = {"context_mask": torch.zeros(2, 7, dtype=torch.bool)} if pattern.cross else {}
    layer(x, context, mask=torch.rand(2, n) < 0.6, **hidden).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_causal_self_attention_is_refused():
    with pytest.raises(UnsupportedPattern, match="cannot run as causal_self"):
        build(Pattern.CAUSAL_SELF)


def test_no_features_are_refused():
    with pytest.raises(UsageError, match="got features=0"):
        build(features=0)
