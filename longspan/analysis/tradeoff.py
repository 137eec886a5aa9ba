"""What does accuracy cost? The points that no other point beats in both price and score."""

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]], *, cheaper_is_less: bool, higher_is_better: bool = True) -> list[int]:
    """Indices of the Pareto-optimal (price, score) points, in order of price.

    >>> front([(1, 0.3), (2, 0.5), (3, 0.4)], cheaper_is_less=True)
    [0, 1]
    """
    price_sign = 1 if cheaper_is_less else -1
    score_sign = -1 if higher_is_better else 1
    order = sorted(range(len(points)), key=lambda i: (price_sign * points[i][0], score_sign * points[i][1]))
    best, chosen = None, []
    for index in order:
        score = score_sign * points[index][1]
        if best is None or score < best:
            best = score
            chosen.append(index)
    return sorted(chosen, key=lambda i: points[i][0])
