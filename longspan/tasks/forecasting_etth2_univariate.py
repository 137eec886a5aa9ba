"""ETTh2, univariate: the oil temperature of a second transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.datasets.etth2 import Data
from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth2Univariate(Forecasting):
    meta = forecasting_task("ETTh2, univariate")
    dataset = "etth2"
    protocols = protocols("etth2", Data(past=336, prefix=336, horizon=720, variables="target"))
