"""A ring and a cache hold the tokens a row has seen, whatever its length."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.kernels.cache import append, fill_ring, put_in_ring, ring_positions
from longspan.kernels.packing import real


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_a_ring_holds_the_last_tokens_each_in_its_slot(lengths, slots):
    rows = torch.tensor(lengths)
    tokens = (torch.arange(1.0, 10) * real(rows, 9))[:, None, :, None]  # token p of a row has value p + 1
    held = fill_ring(tokens, rows, slots)
    for _ in range(3):
        held = put_in_ring(held, (rows + 1.0)[:, None, None], rows)
        rows = rows + 1
        for row, positions in enumerate(ring_positions(rows - 1, slots).tolist()):
            length = int(rows[row])
            assert sorted(p for p in positions if p >= 0) == list(range(max(0, length - slots), length))
            assert held[row, 0, :, 0].tolist() == [p + 1 if p >= 0 else 0 for p in positions]


def test_a_cache_grows_behind_the_last_token_of_each_row():
    tokens = torch.tensor([[1.0, 2], [3, 0]])[:, None, :, None]
    grown = append(tokens, torch.tensor([[[8.0]], [[9.0]]]), torch.tensor([2, 1]))
    assert grown[:, 0, :, 0].tolist() == [[1, 2, 8], [3, 9, 0]]
