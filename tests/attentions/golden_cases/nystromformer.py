"""Vectors of Nystromformer: the authors' code, which scales by the whole batch and segments the padded width."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = f"landmarks={sizes['landmarks']}, iterations={sizes['iterations']}, conv={sizes['conv_kernel'] or 0}"
    parameters = {"conv.weight": "param_conv_weight"} if sizes["conv_kernel"] else {}
    return headwise(f"cab_nystromformer({options}, code=authors)", vector, parameters)
