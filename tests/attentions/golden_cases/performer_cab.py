"""Vectors of CAB's Performer, as released."""

from longspan.attentions.released.cab_performer import SMALLEST_SUM, STABILISER
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if (sizes.get("eps", STABILISER), sizes.get("clamp", SMALLEST_SUM)) != (STABILISER, SMALLEST_SUM):
        return f"cab_performer has CAB's constants, {STABILISER} and {SMALLEST_SUM}"
    features = sizes["features"]
    return headwise(f"cab_performer(features={features})", vector, {"projection": "param_projection"})
