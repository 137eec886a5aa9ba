"""Vectors of DPFP: the authors' layer, which adds up its keys."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    settings = vector.meta["hyperparameters"]
    return headwise(f"dpfp(nu={settings['nu']}, eps={settings['eps']})", vector)
