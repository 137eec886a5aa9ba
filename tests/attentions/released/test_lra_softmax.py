"""LRA's Transformer: real queries see real keys, padded queries average over everything."""

import pytest
import torch
import torch.nn.functional as F

from longspan import attentions
from longspan.attentions import Pattern
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, attention, tensors

ROWS, HEADS, N = 3, 2, 23
MASK = torch.rand(ROWS, N, generator=torch.Generator().manual_seed(0)) < 0.4  # holes everywhere, as in an image
MASK[1] = True
MASK[2] = False


def build(name="lra_softmax"):
    return headwise(name, Pattern.NONCAUSAL_SELF, channels=4)


def released(q, k, v, mask):
    """The formula as in single precision: next to 1e10 a score is lost to rounding, but its derivative is not."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    both = mask[:, None, :, None] & mask[:, None, None, :]
    return torch.where(both, scores, -1e10 + (scores - scores.detach())).softmax(dim=-1) @ v


def test_outputs_and_gradients_are_those_of_the_release():
    q, k, v = leaves = tensors(ROWS, HEADS, N)
    y = build().attend(q, k, v, key_mask=MASK, query_mask=MASK)
    assert_same(y, released(q, k, v, MASK), leaves)


def test_they_are_those_of_scores_lowered_in_single_precision():
    leaves = tensors(ROWS, HEADS, N)
    q, k, v = (u.detach().float().requires_grad_() for u in leaves)
    scores = q @ k.mT / 2 - 1e10 * (~(MASK[:, None, :, None] & MASK[:, None, None, :])).float()
    expected = scores.softmax(dim=-1) @ v
    y = build().float().attend(q, k, v, key_mask=MASK, query_mask=MASK)
    torch.testing.assert_close(y, expected)
    direction = torch.randn_like(y)
    found = torch.autograd.grad(y, (q, k, v), direction)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (q, k, v), direction))


def test_without_padding_it_is_softmax_attention():
    q, k, v = leaves = tensors(2, HEADS, N)
    everything = torch.ones(2, HEADS, N, N, dtype=torch.bool)
    for mask in (None, torch.ones(2, N, dtype=torch.bool)):
        y = build().attend(q, k, v, key_mask=mask, query_mask=mask)
        assert_same(y, attention(q, k, v, everything), leaves)


def test_a_padded_query_gets_the_mean_of_all_values_and_softmax_does_not():
    layer, other, x = build(), build("softmax"), torch.randn(ROWS, N, 8, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    mean = layer.out(layer.value(x).mean(dim=1, keepdim=True)).expand_as(x)
    torch.testing.assert_close(layer(x, mask=MASK)[~MASK], mean[~MASK])
    torch.testing.assert_close(layer(x, mask=MASK)[MASK], other(x, mask=MASK)[MASK])
    assert not torch.allclose(other(x, mask=MASK)[~MASK], mean[~MASK])


def test_the_first_row_alone_is_the_first_of_all_rows():
    layer, x = build(), torch.randn(ROWS, N, 8, dtype=torch.float64)
    torch.testing.assert_close(layer.first(x, mask=MASK), layer(x, mask=MASK)[:, 0])


def test_dropout_leaves_out_equal_weights_too():
    layer = attentions.get("lra_softmax")(8, 2, Pattern.NONCAUSAL_SELF, dropout=0.5).train()
    x, mask = torch.randn(1, 400, 8), torch.zeros(1, 400, dtype=torch.bool)
    torch.manual_seed(0)
    means = torch.stack([layer(x, mask=mask)[0] for _ in range(8)])
    assert means.std(dim=(0, 1)).min() > 0  # each query drops a different half of the tokens
    torch.testing.assert_close(means.mean(dim=(0, 1)), layer.eval()(x, mask=mask)[0, 0], rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["lra_linear", "lra_linformer"])
def test_two_twins_ignore_the_mask(name):
    layer = attentions.get(name)(8, 2, Pattern.NONCAUSAL_SELF, max_length=30).double().eval()
    x = torch.randn(ROWS, N, 8, dtype=torch.float64)
    assert torch.equal(layer(x, mask=MASK), layer(x))
    torch.testing.assert_close(layer.first(x, mask=MASK), layer(x)[:, 0])
    assert not torch.equal(layer(x * MASK[..., None], mask=MASK)[MASK], layer(x)[MASK])


def test_linear_is_the_released_formula():
    layer = headwise("lra_linear", Pattern.NONCAUSAL_SELF, channels=4)
    q, k, v = leaves = tensors(ROWS, HEADS, N)
    phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
    expected = phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(dim=2)[..., None] + 1e-6)
    assert_same(layer.attend(q, k, v, key_mask=MASK, query_mask=MASK), expected, leaves)


def test_linformer_has_sixteen_slots_for_keys_and_values_alike():
    layer = attentions.get("lra_linformer")(8, 2, Pattern.NONCAUSAL_SELF, max_length=30).double()
    q, k, v = leaves = tensors(ROWS, HEADS, N)
    assert layer.to_slots.shape == (30, 16)
    assert layer.to_slots.abs().max() <= (6 / 46) ** 0.5
    e = layer.to_slots[:N]
    expected = (q @ (e.T @ k).mT / 2).softmax(dim=-1) @ (e.T @ v)
    assert_same(layer.attend(q, k, v, key_mask=MASK, query_mask=MASK), expected, leaves)
