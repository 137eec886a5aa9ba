"""Vectors of attention within blocks: the code of the authors of LARA."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("overlap", sizes["extra_each_side"] > 0) != (sizes["extra_each_side"] > 0):
        return "its meta contradicts itself: blocks overlap where they have keys on each side"
    options = f"window={sizes['window']}, shape=blocks, overlap={sizes['extra_each_side']}"
    if not sizes["relative_bias"]:
        return headwise(f"local({options})", vector)
    return headwise(f"local({options}, bias_table=True)", vector, {"bias_table": "param_bias_table"})
