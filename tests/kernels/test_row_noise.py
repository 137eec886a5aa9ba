"""Random numbers per row: uniform, uncorrelated between rows, and determined by seed, row and position alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.kernels.row_noise import row_noise


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**40), min_size=1, max_size=6), st.integers(1, 40))
def test_the_numbers_of_a_row_depend_on_nothing_beside_it(seed, rows, width):
    together = row_noise(seed, torch.tensor(rows), width + 3)
    assert (together >= 0).all()
    assert (together < 1).all()
    for i, row in enumerate(rows):
        assert torch.equal(row_noise(seed, torch.tensor([row]), width)[0], together[i, :width])


def test_they_are_uniform_and_rows_places_and_seeds_have_nothing_in_common():
    noise = torch.stack([row_noise(seed, torch.arange(60), 500) for seed in range(3)])
    assert len(noise.unique()) == noise.numel()
    shares = torch.histc(noise, bins=16, min=0, max=1) / noise.numel()
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 16), rtol=0.03, atol=0)
    for way in (noise.flatten(0, 1), noise.permute(2, 0, 1).flatten(1)):
        alike = torch.corrcoef(way).fill_diagonal_(0).abs().max() * way.shape[1] ** 0.5
        assert alike < 6  # standard deviations, over up to 125,000 pairs
