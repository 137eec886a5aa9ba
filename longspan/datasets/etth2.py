"""ETTh2: load and oil temperature of a second transformer, hour by hour for two years (Informer, AAAI 2021).

Columns and splits are those of ETTh1: seven columns, `OT` the target, months 1 to 12, 13 to 16 and 17 to 20.
"""

from longspan.core.remote import Source
from longspan.datasets.series import Data, Series, forecasts, months, series_meta

__all__ = ["PRESETS", "Data", "Etth2"]

PRESETS = forecasts(
    "etth2",
    multivariate=Data(past=720, prefix=336, horizon=720),
    univariate=Data(past=336, prefix=336, horizon=720),
)


class Etth2(Series):
    source = Source(
        "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh2.csv",
        "ETTh2.csv",
        size=2_417_960,
        sha256="a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
        dataset="etth2",
        licence="CC BY-ND 4.0; cite Zhou et al., AAAI 2021.",
    )
    meta = series_meta("ETTh2", source.url, "17,420 rows of 7 values, 2.4 MB")
    files = ("ETTh2.csv",)
    columns = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    targets = ("OT",)
    rows = 17_420
    borders = months(12, 4, 4, per_day=24)
