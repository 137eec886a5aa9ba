"""Layouts: the strides a compiled graph expects of a result are those the kernel produces, for any input layout."""

from itertools import permutations

import pytest
import torch

from longspan.kernels.launch import empty_like, readable


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_room_is_laid_out_alike_before_and_after_reading(order):
    x = torch.empty(2, 3, 5, 7).permute(order).contiguous().permute([order.index(axis) for axis in range(4)])
    assert x.shape == (2, 3, 5, 7)
    room = empty_like(x, 4, torch.float32)
    assert room.shape == (2, 3, 5, 4)
    assert room.stride() == empty_like(readable(x), 4, torch.float32).stride()


def test_tokens_of_a_projection_give_tokens_for_the_next_one():
    x = torch.empty(2, 5, 3, 7).transpose(1, 2)
    assert readable(x) is x
    assert empty_like(x, 4, torch.float32).transpose(1, 2).is_contiguous()
