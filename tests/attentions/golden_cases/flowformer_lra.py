"""Vectors of Flowformer as its authors ran it on Long Range Arena, where heads compete."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    settings = vector.meta["hyperparameters"]
    if (features := settings.get("feature_map", "relu+1e-6")) != "relu+1e-6":
        return f"lra_flowformer makes its features with relu + 1e-6, not {features}"
    return headwise(f"lra_flowformer(eps={settings['eps']})", vector)
