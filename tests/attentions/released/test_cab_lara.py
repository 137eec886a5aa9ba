"""CAB's LARA: a valid estimator without padding, and three ways in which padding leaks in."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern
from longspan.core.errors import UsageError


def build(spec="cab_lara(landmarks=5)") -> HeadwiseAttention:
    torch.manual_seed(0)
    layer = attentions.get(spec)(8, 2, Pattern.NONCAUSAL_SELF).double().eval()
    assert isinstance(layer, HeadwiseAttention)
    return layer


@pytest.mark.parametrize("n", [1, 4, 5, 13, 30])
def test_without_padding_it_is_lara_with_the_weighting_of_cab(n):
    twin, lara = build(), build("lara(landmarks=5, proposal=means, weighting=query)")
    q, k, v = torch.randn(3, 2, 2, n, 4, dtype=torch.float64)
    torch.testing.assert_close(twin.attend(q, k, v), lara.attend(q, k, v))


def test_heads_are_masked_with_the_masks_of_other_rows():
    """With 3 rows of 2 heads: the heads of row 0 have the masks of rows 0 and 1, those of row 1 of rows 2 and 0..."""
    layer = build()
    q, k, v = torch.randn(3, 3, 2, 12, 4, dtype=torch.float64)
    v.requires_grad_()
    mask = torch.arange(12) < torch.tensor([[12], [7], [3]])
    (gradient,) = torch.autograd.grad(layer.attend(q, k, v, key_mask=mask).square().sum(), v)
    seen = gradient.abs().amax(dim=-1) > 0
    assert seen.sum(dim=-1).tolist() == [[12, 7], [3, 12], [7, 3]]


def test_padded_keys_stay_in_the_weights_and_in_the_landmarks():
    layer = build()
    q, k, v = torch.randn(3, 1, 2, 20, 4, dtype=torch.float64)
    mask = torch.arange(20)[None] < 15
    changed = k.clone()
    changed[:, :, 15:] += 1
    before, after = (layer.attend(q, u, v, key_mask=mask) for u in (k, changed))
    assert not torch.allclose(before[:, :, :15], after[:, :, :15])
    v[:, :, 15:] = 1e4  # their values are not seen
    torch.testing.assert_close(layer.attend(q, k, v, key_mask=mask), before)


def test_noise_is_for_training():
    layer, x = build(), torch.randn(2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer(x))
    assert not torch.allclose(layer.train()(x), layer(x))


@pytest.mark.parametrize("n", [1, 2, 63, 130])
def test_any_length_runs_forward_and_backward(n):
    layer, x = build("cab_lara"), torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, n) < 0.6
    mask[1] = False
    y = layer(x, mask=mask)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_no_landmark_at_all_is_refused():
    with pytest.raises(UsageError, match="landmarks=0"):
        build("cab_lara(landmarks=0)")
