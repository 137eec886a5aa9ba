"""ETTh2, univariate: the oil temperature of a second transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth2Univariate(Forecasting):
    meta = forecasting_task("ETTh2, univariate")
    dataset = "etth2"
    protocols = protocols("forecasting_etth2_univariate", dataset=dataset)
