"""Vectors of CAB's LARA: a different estimator, and with padding a twin of its released code."""

from tests.attentions.golden_cases.lara import sampled
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    landmarks, antithetic = sizes["landmarks"], sizes.get("antithetics", False)
    row = [vector.arrays["q"].shape[2]]
    if (proposal := sizes.get("proposal", "seg-means")) != "seg-means":
        return f"CAB's lara has means of segments for proposals, not {proposal!r}"
    if vector.key_mask is None:
        spec = f"lara(landmarks={landmarks}, proposal=means, weighting=query, antithetic={antithetic})"
        return sampled(spec, vector, row)
    if antithetic:
        return "cab_lara draws one sample of each proposal, as CAB's tasks do"
    return sampled(f"cab_lara(landmarks={landmarks})", vector, row)
