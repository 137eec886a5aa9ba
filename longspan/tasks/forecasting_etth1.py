"""ETTh1: all seven readings of a transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.datasets.etth1 import Data
from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth1(Forecasting):
    meta = forecasting_task("ETTh1")
    dataset = "etth1"
    protocols = protocols("etth1", Data(past=336, prefix=336, horizon=720))
