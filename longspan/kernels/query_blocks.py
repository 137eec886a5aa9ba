"""Queries in blocks, for attention whose scores are made for some queries at a time."""

from collections.abc import Iterator


def query_blocks(n: int, m: int, size: int, *, causal: bool) -> Iterator[tuple[slice, int]]:
    """Consecutive slices of up to `size` of n queries, and how many of m keys each may see.

    >>> list(query_blocks(5, 5, 3, causal=True))
    [(slice(0, 3, None), 3), (slice(3, 5, None), 5)]
    """
    for start in range(0, n, size):
        end = min(start + size, n)
        yield slice(start, end), min(end, m) if causal else m


def count_pairs(n: int, m: int, size: int, *, causal: bool) -> int:
    """Pairs of queries and keys, in all blocks."""
    return sum((some.stop - some.start) * seen for some, seen in query_blocks(n, m, size, causal=causal))
