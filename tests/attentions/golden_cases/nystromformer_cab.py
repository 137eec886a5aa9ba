"""Vectors of CAB's Nystromformer, as released; the padded one has a single row, whose mask is where it belongs."""

from longspan.attentions.released.cab_nystromformer import ITERATIONS
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("iterations", ITERATIONS) != ITERATIONS:
        return f"cab_nystromformer has CAB's {ITERATIONS} iterations"
    spec = f"cab_nystromformer(landmarks={sizes['landmarks']}, conv={sizes['conv_kernel'] or 0})"
    return headwise(spec, vector, {"conv.weight": "param_conv_weight"} if sizes["conv_kernel"] else {})
