"""Weather: twelve readings of a weather station, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingWeather(Forecasting):
    meta = forecasting_task("Weather")
    dataset = "weather"
    protocols = protocols("forecasting_weather", dataset=dataset, encoder_layers=3, decoder_layers=2)
