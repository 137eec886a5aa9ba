"""Vectors of linear attention: the authors' own code, masks included."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    if (features := vector.meta["hyperparameters"].get("feature_map", "elu+1")) != "elu+1":
        return f"linear makes its features with elu + 1, not {features}"
    return headwise(f"linear(eps={vector.meta['hyperparameters']['eps']})", vector)
