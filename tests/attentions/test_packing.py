"""Packing: the real tokens of a padded batch in one row, and back."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.packing import Layout, left_align, real, real_first, unsqueeze_like


@st.composite
def masks(draw):
    n = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=4))
    return torch.tensor(rows)


@given(masks())
@settings(deadline=None)
def test_unpacking_undoes_packing(mask):
    x = torch.arange(1.0, mask.numel() + 1).reshape(*mask.shape, 1).repeat(1, 1, 2)
    layout = Layout.of_mask(mask)
    packed = layout.pack(x)
    assert torch.equal(packed, x[mask])
    assert torch.equal(layout.unpack(packed), x * mask[..., None])
    assert layout.max_seqlen == mask.sum(dim=1).max()
    assert layout.together == all("10" not in "".join(str(int(real)) for real in row).strip("0") for row in mask)
    for row, (start, end) in enumerate(zip(layout.cu_seqlens[:-1], layout.cu_seqlens[1:], strict=True)):
        assert torch.equal(packed[start:end], x[row, mask[row]])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 3))
@settings(deadline=None)
def test_a_layout_of_lengths_is_that_of_their_mask(lengths, more):
    width = max(lengths) + more
    ours, masks_ = Layout.of_lengths(lengths, width), Layout.of_mask(real(torch.tensor(lengths), width))
    assert torch.equal(ours.mask, masks_.mask)
    assert torch.equal(ours.index, masks_.index)
    assert torch.equal(ours.cu_seqlens, masks_.cu_seqlens)
    assert ours.cu_seqlens.dtype == torch.int32
    assert ours.max_seqlen == masks_.max_seqlen == max(lengths)
    assert ours.together
    assert masks_.together


def test_gradients_pass_through_packing():
    layout = Layout.of_lengths([2, 1], width=3)
    x = torch.ones(2, 3, 1, requires_grad=True)
    layout.unpack(layout.pack(x) * 5).sum().backward()
    assert torch.equal(x.grad, 5.0 * layout.mask[..., None])


@given(masks())
@settings(deadline=None)
def test_left_alignment_keeps_order_and_fills_with_zeros(mask):
    x = torch.arange(1.0, mask.numel() + 1).reshape(mask.shape)
    aligned, lengths = left_align(x, mask)
    for row in range(len(mask)):
        kept = x[row, mask[row]]
        assert lengths[row] == len(kept)
        assert torch.equal(aligned[row], torch.cat([kept, torch.zeros(mask.shape[1] - len(kept))]))


def test_without_a_mask_everything_is_real():
    x = torch.randn(2, 3)
    aligned, lengths = left_align(x, None)
    assert aligned is x
    assert lengths.tolist() == [3, 3]


def test_axes_are_added_at_the_end():
    assert unsqueeze_like(torch.ones(2, 3), torch.ones(2, 3, 4, 5)).shape == (2, 3, 1, 1)


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_real_tokens_come_first_as_a_stable_sort_has_them(rows):
    mask = torch.tensor(rows)
    torch.testing.assert_close(real_first(mask), mask.logical_not().byte().argsort(dim=1, stable=True))
    assert real_first(mask[:, :0]).shape == (len(rows), 0)
