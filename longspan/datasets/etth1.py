"""ETTh1: load and oil temperature of an electricity transformer, hour by hour for two years (Informer, AAAI 2021).

Seven columns, of which the oil temperature `OT` is the target; twelve months of 30 days for training, four for
validation, four for the test. The 3,020 rows after that are not used, as in the original.
"""

from longspan.core.remote import Source
from longspan.datasets.series import Data, Series, forecasts, months, series_meta

__all__ = ["PRESETS", "Data", "Etth1"]

PRESETS = forecasts(
    "etth1",
    multivariate=Data(past=336, prefix=336, horizon=720),
    univariate=Data(past=168, prefix=168, horizon=720),
)


class Etth1(Series):
    source = Source(
        "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh1.csv",
        "ETTh1.csv",
        size=2_589_657,
        sha256="f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
        dataset="etth1",
        licence="CC BY-ND 4.0; cite Zhou et al., AAAI 2021.",
    )
    meta = series_meta("ETTh1", source.url, "17,420 rows of 7 values, 2.6 MB")
    files = ("ETTh1.csv",)
    columns = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    targets = ("OT",)
    rows = 17_420
    borders = months(12, 4, 4, per_day=24)
