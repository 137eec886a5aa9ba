"""Vectors of cosFormer: the authors' code, whose length is that of the call."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    if (activation := vector.meta["hyperparameters"].get("activation", "relu")) != "relu":
        return f"cosformer makes its features with relu, not {activation}"
    return headwise(f"cosformer(length=call, eps={vector.meta['hyperparameters']['eps']})", vector)
