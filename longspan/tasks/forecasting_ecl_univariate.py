"""ECL, univariate: the consumption of a client, 960 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEclUnivariate(Forecasting):
    meta = forecasting_task("ECL, univariate")
    dataset = "ecl"
    protocols = protocols("forecasting_ecl_univariate", dataset=dataset, encoder_layers=3, decoder_layers=2)
