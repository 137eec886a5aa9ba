"""ETTh1: all seven readings of a transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth1(Forecasting):
    meta = forecasting_task("ETTh1")
    dataset = "etth1"
    protocols = protocols("forecasting_etth1", dataset=dataset)
