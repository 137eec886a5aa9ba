"""Vectors of attention within blocks: the code of the authors of LARA."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes["relative_bias"]:
        return "local has no learned bias on relative places"
    return headwise(f"local(window={sizes['window']}, shape=blocks, overlap={sizes['extra_each_side']})", vector)
