"""Vectors of linear attention: the authors' own code, masks included."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    return headwise(f"linear(eps={vector.meta['hyperparameters']['eps']})", vector)
