"""ETTh1, univariate: the oil temperature of a transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.datasets.etth1 import Data
from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth1Univariate(Forecasting):
    meta = forecasting_task("ETTh1, univariate")
    dataset = "etth1"
    protocols = protocols("etth1", Data(past=168, prefix=168, horizon=720, variables="target"))
