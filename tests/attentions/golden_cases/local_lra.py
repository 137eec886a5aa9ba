"""Vectors of Long Range Arena's local attention, as released."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    return headwise(f"lra_local(block={vector.meta['hyperparameters']['block']})", vector)
