"""ETTh2: all seven readings of a second transformer, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEtth2(Forecasting):
    meta = forecasting_task("ETTh2")
    dataset = "etth2"
    protocols = protocols("forecasting_etth2", dataset=dataset)
