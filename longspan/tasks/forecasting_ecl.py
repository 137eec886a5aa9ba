"""ECL: the consumption of 321 clients, 960 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingEcl(Forecasting):
    meta = forecasting_task("ECL")
    dataset = "ecl"
    protocols = protocols("forecasting_ecl", dataset=dataset, encoder_layers=3, decoder_layers=2)
