"""ECL: the consumption of 321 clients, 960 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.datasets.ecl import Data
from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEcl(Forecasting):
    meta = forecasting_task("ECL")
    dataset = "ecl"
    protocols = protocols("ecl", Data(past=336, prefix=336, horizon=960), encoder_layers=3, decoder_layers=2)
