"""Long Range Arena's Reformer: ten growing chunks, logits times sqrt(c), and rows that mix heads with positions."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError


def build(spec="lra_reformer", dim=12, heads=3, seed=0, **shell):
    torch.manual_seed(seed)
    return attentions.get(spec)(dim, heads, Pattern.NONCAUSAL_SELF, **shell).double().eval()


def by_hand(layer, x):
    """The computation in the released order, one row and one head at a time."""
    b, n, d = x.shape
    chunks, width = layer.buckets, d // layer.heads
    x = torch.cat([x, x.new_zeros(b, chunks - n % chunks, d)], dim=1)
    longer = x.shape[1]
    size = longer // chunks
    rows = []
    for row in x:
        heads = []
        for h in range(layer.heads):
            part = slice(h * width, (h + 1) * width)
            z, v = layer.query(row)[:, part], layer.value(row)[:, part]
            rotated = z @ layer.rotations
            bucket = torch.cat([rotated, -rotated], dim=1).argmax(dim=1).tolist()
            order = sorted(range(longer), key=lambda i, bucket=bucket: (bucket[i], i))
            y = torch.zeros_like(v)
            for g in range(chunks):
                own = order[g * size : (g + 1) * size]
                seen = own + order[(g - 1) % chunks * size :][:size]
                y[own] = torch.softmax(z[own] @ z[seen].T * width**0.5, dim=1) @ v[seen]
            heads.append(y)
        rows.append(torch.stack(heads).reshape(longer, d)[:n])
    return torch.stack(rows)


@pytest.mark.parametrize("n", [1, 9, 10, 37])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_follow_the_release(n, bias):
    layer = build(bias=bias)
    x = torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x), by_hand(layer, x)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    leaves = [x, *layer.parameters()]
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), leaves) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_row_of_the_output_holds_several_tokens_of_one_head():
    """With all tokens equal each head has one vector, which fills whole rows instead of a third of each."""
    layer = build(bias=False)
    x = torch.randn(12, dtype=torch.float64).expand(1, 20, 12)
    with torch.no_grad():
        layer.query.weight.zero_()  # all logits 0, all tokens in one bucket, one after the other
    y = layer(x)[0]
    first_head = layer.value(x)[0, 0, :4]
    torch.testing.assert_close(y[2], first_head.repeat(3))


def test_masks_and_dropout_change_nothing():
    layer = build(dropout=0.5).train()
    x = torch.randn(2, 30, 12, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x, mask=torch.zeros(2, 30, dtype=torch.bool)))


def test_every_layer_hashes_alike_and_nothing_is_mapped_out():
    one, other = build(seed=0), build(seed=1)
    assert torch.equal(one.rotations, other.rotations)
    assert set(one.state_dict()) == {"query.weight", "query.bias", "value.weight", "value.bias", "rotations"}


def test_the_inner_width_is_ignored():
    layer = build(inner=6)
    assert layer.query.weight.shape == (12, 12)
    assert layer(torch.randn(1, 5, 12, dtype=torch.float64)).shape == (1, 5, 12)


@pytest.mark.parametrize("n", [1, 2, 63, 200])
@pytest.mark.parametrize("masked", [False, True])
def test_any_length_runs_forward_and_backward(n, masked):
    layer = build()
    x = torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True)
    layer(x, mask=torch.rand(2, n) < 0.6 if masked else None).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_an_odd_number_of_buckets_is_refused():
    with pytest.raises(UsageError, match="got buckets=5"):
        build("lra_reformer(buckets=5)")
