"""Vectors of cosFormer: the authors' code, whose maximum length is the length of the call."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    if (activation := vector.meta["hyperparameters"].get("activation", "relu")) != "relu":
        return f"cosformer makes its features with relu, not {activation}"
    length = max(vector.arrays[name].shape[2] for name in "qk")
    return headwise(f"cosformer(eps={vector.meta['hyperparameters']['eps']})", vector, max_length=length)
