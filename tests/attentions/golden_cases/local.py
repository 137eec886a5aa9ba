"""Vectors of the sliding window: CAB's code, correct without a padding mask and wrong with one."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    name = "cab_local" if vector.released else "local"
    return headwise(f"{name}(window={vector.meta['hyperparameters']['window']})", vector)
