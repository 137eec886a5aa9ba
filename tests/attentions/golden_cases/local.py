"""Vectors of the sliding window: CAB's code."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    if vector.name == "local__ns_pad_as_released_by_cab":
        return "two masks are combined with AND there, so that padded keys stay visible and border keys count twice"
    return headwise(f"local(window={vector.meta['hyperparameters']['window']})", vector)
