"""ETTm1: the transformer of ETTh1, every quarter of an hour for two years (Informer, AAAI 2021).

Columns and months are those of ETTh1, with four times the rows. The time features give the hour and not the quarter, as
in the original's scripts.
"""

from longspan.core.remote import Source
from longspan.datasets.series import Data, Series, forecasts, months, series_meta

__all__ = ["PRESETS", "Data", "Ettm1"]

PRESETS = forecasts(
    "ettm1",
    multivariate=Data(past=672, prefix=384, horizon=672),
    univariate=Data(past=384, prefix=384, horizon=672),
)


class Ettm1(Series):
    source = Source(
        "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTm1.csv",
        "ETTm1.csv",
        size=10_360_719,
        sha256="6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
        dataset="ettm1",
        licence="CC BY-ND 4.0; cite Zhou et al., AAAI 2021.",
    )
    meta = series_meta("ETTm1", source.url, "69,680 rows of 7 values, 10.4 MB")
    files = ("ETTm1.csv",)
    columns = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    targets = ("OT",)
    rows = 69_680
    borders = months(12, 4, 4, per_day=96)
    step = 900
