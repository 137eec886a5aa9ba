"""Few widths for batches of many lengths, so that batch shapes recur and captured updates are reused."""

from longspan.core.errors import UsageError


def bucket(longest: int, step: int, most: int) -> int:
    """The width to which a batch is padded: the next multiple of `step`, and never more than `most`.

    >>> bucket(130, 64, 1000), bucket(990, 64, 1000), bucket(0, 64, 1000)
    (192, 1000, 64)
    """
    if step < 1 or longest > most:
        raise UsageError(f"A width for {longest} places in steps of {step} and at most {most} does not exist.")
    return min(most, max(1, -(-longest // step)) * step)
