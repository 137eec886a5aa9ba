"""ETTm1, univariate: the oil temperature of a transformer, 672 quarters of an hour ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEttm1Univariate(Forecasting):
    meta = forecasting_task("ETTm1, univariate")
    dataset = "ettm1"
    protocols = protocols("forecasting_ettm1_univariate", dataset=dataset)
