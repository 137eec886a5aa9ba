"""Vectors of attention with bounded-memory control: CAB's two forms, and the paper's causal one."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    slots = vector.meta["hyperparameters"]["slots"]
    if "param_slot_weight" in vector.arrays:
        return headwise(f"abc(control=shared, slots={slots})", vector, {"control_key": "param_slot_weight"})
    name = "cab_abc" if vector.released else "abc"
    parameters = {"control_key": "param_compress_k", "control_value": "param_compress_v"}
    return headwise(f"{name}(slots={slots})", vector, parameters)
