"""Vectors of CAB's Nystromformer, as released; the padded one has a single row, so its mask is the right one."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = f"landmarks={sizes['landmarks']}, iterations={sizes.get('iterations', 6)}"
    spec = f"cab_nystromformer({options}, conv={sizes['conv_kernel'] or 0})"
    return headwise(spec, vector, {"conv.weight": "param_conv_weight"} if sizes["conv_kernel"] else {})
