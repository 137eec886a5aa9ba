"""ETTm1: all seven readings of a transformer, 672 quarters of an hour ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEttm1(Forecasting):
    meta = forecasting_task("ETTm1")
    dataset = "ettm1"
    protocols = protocols("forecasting_ettm1", dataset=dataset)
