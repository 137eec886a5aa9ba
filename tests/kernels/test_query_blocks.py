"""Blocks of queries: every query once, with every key that it may see."""

from hypothesis import given
from hypothesis import strategies as st

from longspan.kernels.query_blocks import count_pairs, query_blocks


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_blocks_hold_every_query_once_and_all_keys_it_may_see(n, m, size, causal):
    blocks = list(query_blocks(n, m, size, causal=causal))
    assert [i for some, _ in blocks for i in range(some.start, some.stop)] == list(range(n))
    for some, seen in blocks:
        assert 0 < some.stop - some.start <= size
        assert seen == (min(some.stop, m) if causal else m)
    assert count_pairs(n, m, size, causal=causal) == sum(len(range(n)[some]) * seen for some, seen in blocks)
