"""Vectors of CAB's Performer, as released."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    features = vector.meta["hyperparameters"]["features"]
    return headwise(f"cab_performer(features={features})", vector, {"projection": "param_projection"})
