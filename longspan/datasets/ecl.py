"""ECL: the consumption of 321 clients of an electricity supplier, hour by hour for three years (Informer, AAAI 2021).

The target is client 320, called `MT_320` in the original and `OT` in a copy that others use; the names of the other
columns do not matter. A table with only some of the clients, including the target, can be used for univariate
forecasts. The first 70 % of the rows are for training, the last 20 % for the test. The table is in the archive of
several forecasting tables kept by the authors of S4, for which no digest is published.
"""

from longspan.core.remote import Source
from longspan.datasets.series import Data, Series, forecasts, series_meta, tenths

__all__ = ["PRESETS", "Data", "Ecl"]

WINDOW = Data(past=336, prefix=336, horizon=960)
PRESETS = forecasts("ecl", multivariate=WINDOW, univariate=WINDOW)


class Ecl(Series):
    source = Source(
        "https://drive.google.com/uc?export=download&id=1XqpxE6cthIxKYviSmR703yU45vdQ1oHT",
        "informer.zip",
        dataset="ecl",
        licence="derived from UCI ElectricityLoadDiagrams20112014, CC BY 4.0.",
    )
    meta = series_meta("ECL", source.url, "26,304 rows of 321 values, 95 MB")
    files = ("ECL.csv", "electricity.csv")
    columns = 321
    targets = ("MT_320", "OT")
    rows = 26_304
    borders = tenths(rows)
