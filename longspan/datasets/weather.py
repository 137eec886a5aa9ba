"""Weather (WTH): readings of one weather station, hour by hour from 2010 to 2013 (Informer, AAAI 2021).

Twelve columns, of which the wet-bulb temperature in Celsius is the target. The first 70 % of the rows are for training,
the last 20 % for the test. Missing readings were filled in by its makers. The table is in the archive of several
forecasting tables kept by the authors of S4, for which no digest is published; copies that a spreadsheet has saved
differ from the original in a few last digits and are taken as they are.
"""

from longspan.core.remote import Source
from longspan.datasets.series import Data, Series, forecasts, series_meta, tenths

__all__ = ["PRESETS", "Data", "Weather"]

WINDOW = Data(past=720, prefix=336, horizon=720)
PRESETS = forecasts("weather", multivariate=WINDOW, univariate=WINDOW)


class Weather(Series):
    source = Source(
        "https://drive.google.com/uc?export=download&id=1XqpxE6cthIxKYviSmR703yU45vdQ1oHT",
        "informer.zip",
        dataset="weather",
        licence="derived from NOAA local climatological data, public domain.",
    )
    meta = series_meta("Weather (WTH)", source.url, "35,064 rows of 12 values, 2.1 MB")
    files = ("WTH.csv",)
    columns = (
        *("Visibility", "DryBulbFarenheit", "DryBulbCelsius", "WetBulbFarenheit", "DewPointFarenheit"),
        *("DewPointCelsius", "RelativeHumidity", "WindSpeed", "WindDirection", "StationPressure", "Altimeter"),
        "WetBulbCelsius",
    )
    targets = ("WetBulbCelsius",)
    rows = 35_064
    borders = tenths(rows)
