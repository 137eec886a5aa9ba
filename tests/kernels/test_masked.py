"""Attention under masks: scores removed or only lowered."""

import torch
import torch.nn.functional as F

from longspan.kernels.masked import attend_once, lowered_attention, masked_attention


def test_where_something_is_visible_lowering_is_as_good_as_removing():
    q, k, v = torch.randn(3, 2, 2, 9, 4).unbind(0)
    visible = torch.rand(2, 1, 9, 9) < 0.5
    visible[..., 0] = True
    torch.testing.assert_close(lowered_attention(q, k, v, visible), masked_attention(q, k, v, visible))


def test_one_query_sees_what_it_would_see_among_others():
    q, k, v = torch.randn(3, 2, 2, 9, 4).unbind(0)
    visible = torch.rand(2, 2, 9, 9) < 0.4
    visible[0, 0, 3] = False
    expected = masked_attention(q, k, v, visible)[:, :, 3]
    torch.testing.assert_close(attend_once(q[:, :, 3], k, v, visible[:, :, 3]), expected)
    torch.testing.assert_close(attend_once(q[:, :, 3], k, v, visible[:, :1, 3])[:, 0], expected[:, 0])


def test_a_query_that_sees_nothing_spreads_evenly_and_its_gradient_is_that_of_a_mean():
    q, k, v = torch.randn(3, 1, 1, 50, 4).unbind(0)
    v.requires_grad_()
    y = lowered_attention(q, k, v, torch.zeros(1, 1, 50, 50, dtype=torch.bool))
    torch.testing.assert_close(y, v.mean(dim=2, keepdim=True).expand_as(y), rtol=1e-3, atol=1e-3)
    (gradient,) = torch.autograd.grad(y[:, :, 0].sum(), v)
    torch.testing.assert_close(gradient, torch.full_like(v, 1 / 50), rtol=1e-3, atol=1e-3)


def test_a_key_that_no_query_sees_may_hold_anything():
    q, k, v = torch.randn(3, 2, 2, 9, 4).unbind(0)
    visible = torch.rand(2, 1, 9, 9) < 0.6
    visible[..., 3] = False
    expected = masked_attention(q, k, v, visible)
    k[:, :, 3] = torch.inf
    torch.testing.assert_close(masked_attention(q, k, v, visible), expected)


def test_fused_kernels_get_a_mask_whose_keys_lie_side_by_side(monkeypatch):
    strides = []
    attention = F.scaled_dot_product_attention

    def watched(*tensors, attn_mask, **how):
        strides.append(attn_mask.stride(-1))
        return attention(*tensors, attn_mask=attn_mask, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    q, k, v = torch.randn(3, 6, 2, 9, 4).unbind(0)
    visible = (torch.rand(9, 6) < 0.5).T[:, None, None]  # the layout of a grid read along its columns
    masked_attention(q, k, v, visible)
    assert strides == [1]
