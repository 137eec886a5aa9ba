"""Rows as a data frame; pandas is imported when one is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longspan.core.errors import LongspanError


class FrameError(LongspanError):
    """A data frame cannot be made on this machine."""


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """A pandas data frame, or an error that says how to get pandas."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise FrameError("A data frame needs pandas, which is not installed; run `pip install pandas`.") from None
    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))
