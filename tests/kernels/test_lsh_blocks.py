"""Tokens sorted into blocks of one bucket each."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.kernels.lsh_attention.blocks import bucket_blocks, in_slots


@given(bucket=st.lists(st.integers(0, 4), max_size=40), size=st.integers(1, 9))
def test_every_token_lies_in_order_in_the_blocks_of_its_bucket(bucket, size):
    bucket = torch.tensor(bucket, dtype=torch.long)[None, None]
    slot, first, owner = bucket_blocks(bucket, 5, size)
    assert len(slot.unique()) == slot.numel()
    assert torch.equal(owner.gather(2, slot // size), bucket)
    assert torch.equal(owner.gather(2, first), torch.arange(5)[None, None])
    for g in range(5):
        own = slot[bucket == g]
        assert torch.equal(own, first[0, 0, g] * size + torch.arange(len(own)))


def test_empty_slots_hold_the_fill():
    slot, _, owner = bucket_blocks(torch.tensor([[[1, 0, 1]]]), 2, size=2)
    found = in_slots(torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3, 1), slot, owner.shape[2], 2, fill=-1.0)
    assert found.flatten().tolist() == [2, -1, 1, 3, -1, -1, -1, -1]
