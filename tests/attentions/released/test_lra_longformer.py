"""LRA's Longformer: an asymmetric band, and parameters without effect."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, attention, pairs, tensors


def build(options=""):
    return headwise(f"lra_longformer({options})", Pattern.NONCAUSAL_SELF, channels=4)


@pytest.mark.parametrize("n", [1, 2, 25])
@pytest.mark.parametrize("window, left, right", [(8, 3, 4), (7, 3, 3), (1, 0, 0), (2, 0, 1), (512, 255, 256)])
def test_an_even_window_reaches_one_further_to_the_right(n, window, left, right):
    q, k, v = leaves = tensors(2, 2, n)
    allowed = pairs(lambda row, head, i, j: -left <= j - i <= right, 2, 2, n)
    layer = build(f"window={window}")
    assert_same(layer.attend(q, k, v), attention(q, k, v, allowed), leaves)
    assert (layer.left, layer.right) == (left, right)


def test_padded_keys_are_hidden_and_padded_queries_spread_over_everything():
    q, k, v = (u.detach().float() for u in tensors(2, 2, 20))
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    y = build("window=4").float().attend(q, k, v, key_mask=mask, query_mask=mask)
    torch.testing.assert_close(y[1, :, 13:], v[1].mean(dim=1, keepdim=True).expand(-1, 7, -1))
    k[1, :, 13:], v[1, :, 13:] = 1e4, 1e4
    changed = build("window=4").float().attend(q, k, v, key_mask=mask, query_mask=mask)
    assert torch.equal(changed[1, :, :13], y[1, :, :13])


def test_global_projections_count_but_have_no_say():
    layer, softmax = build(), headwise("softmax", Pattern.NONCAUSAL_SELF, channels=4)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(layer) - count(softmax) == 3 * (8 * 8 + 8)
    assert len(list(layer.projections())) == 7
    layer(torch.randn(2, 9, 8, dtype=torch.float64)).sum().backward()
    silent = {name for name, p in layer.named_parameters() if p.grad is None}
    assert silent == {f"{u}_global.{part}" for u in ("query", "key", "value") for part in ("weight", "bias")}
    assert attentions.get("lra_longformer")(8, 2, Pattern.NONCAUSAL_SELF, bias=False).key_global.bias is None


def test_the_class_token_sees_no_further_than_any_other():
    layer, x = build("window=4"), torch.randn(1, 20, 8, dtype=torch.float64)
    changed = x.clone()
    changed[0, 3:] += 1
    assert torch.equal(layer(changed)[0, 0], layer(x)[0, 0])


def test_an_impossible_window_is_refused():
    with pytest.raises(UsageError, match="got window=0"):
        build("window=0")
