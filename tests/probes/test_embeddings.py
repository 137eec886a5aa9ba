"""Similarities are cosines, and neighbours are found where they are."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.probes.embeddings import by_distance, neighbours, similarity


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 2**31))
def test_everything_is_like_itself_and_likeness_is_mutual(n, d, seed):
    vectors = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    found = similarity(vectors)
    torch.testing.assert_close(found.diagonal(), torch.ones(n))
    torch.testing.assert_close(found, found.T)
    assert found.abs().max() <= 1
    torch.testing.assert_close(found, similarity(3 * vectors))


def test_distance_is_that_along_the_diagonal():
    matrix = torch.tensor([[1.0, 0.5, 0.1], [0.5, 1.0, 0.7], [0.1, 0.7, 1.0]])
    assert by_distance(matrix) == [1.0, 0.6, 0.1]


def test_pixels_of_one_column_are_below_one_another():
    """Every pixel has the vector of its column: the pixel below has the same vector, the one beside it another."""
    side = 5
    columns = torch.eye(side)
    found = neighbours(similarity(columns.repeat(side, 1)), side)
    assert found["below"] == 1
    assert found["beside"] == 0
    assert 0 < found["others"] < 1
