"""Vectors of XCiT: the authors' cross-covariance attention, with its temperatures."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    return headwise("xcit", vector, {"temperature": "param_temperature"})
