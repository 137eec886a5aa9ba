"""ETTh1, univariate: the oil temperature of a transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth1Univariate(Forecasting):
    meta = forecasting_task("ETTh1, univariate")
    dataset = "etth1"
    protocols = protocols("forecasting_etth1_univariate", dataset=dataset)
