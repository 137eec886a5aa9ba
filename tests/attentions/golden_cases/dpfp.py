"""Vectors of DPFP: the authors' layer, in the form that sums over its keys."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    settings = vector.meta["hyperparameters"]
    return headwise(f"dpfp(nu={settings['nu']}, eps={settings['eps']})", vector)
