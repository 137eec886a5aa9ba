"""Vectors of cosFormer: the authors' code, whose length is that of the call."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    return headwise(f"cosformer(length=call, eps={vector.meta['hyperparameters']['eps']})", vector)
