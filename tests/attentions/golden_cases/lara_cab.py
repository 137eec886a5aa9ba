"""Vectors of CAB's LARA: an estimator of its own, and with padding a twin of its released code."""

from tests.attentions.golden_cases.lara import sampled
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay:
    landmarks = vector.meta["hyperparameters"]["landmarks"]
    if vector.key_mask is not None:
        return sampled(f"cab_lara(landmarks={landmarks})", vector)
    return sampled(f"lara(landmarks={landmarks}, proposal=means, weighting=query)", vector)
