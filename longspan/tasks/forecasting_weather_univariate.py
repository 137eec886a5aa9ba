"""Weather, univariate: the wet-bulb temperature, 720 hours ahead (CAB, arXiv:2210.07661)."""

from longspan.tasks.forecasting import Forecasting, forecasting_task, protocols


class ForecastingWeatherUnivariate(Forecasting):
    meta = forecasting_task("Weather, univariate")
    dataset = "weather"
    protocols = protocols("forecasting_weather_univariate", dataset=dataset, encoder_layers=3, decoder_layers=2)
