"""Vectors of Long Range Arena's local attention, as released."""

from tests.attentions.parity import Replay, Vector, agree, headwise


def replay(vector: Vector) -> Replay:
    block = vector.meta["hyperparameters"]["block"]
    groups = vector.arrays["q"].shape[2] // block + 1  # one more than needed where the length divides
    agree(vector, groups=groups, padded_to=groups * block)
    return headwise(f"lra_local(block={block})", vector)
