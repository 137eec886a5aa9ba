"""Vectors of attention with bounded-memory control: CAB's non-causal form and the paper's causal one."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    slots = vector.meta["hyperparameters"]["slots"]
    if vector.name == "abc__cs_as_released_by_cab":
        return "the running sum is missing there: position t reads only its own token"
    if "param_slot_weight" in vector.arrays:
        return headwise(f"abc(control=shared, slots={slots})", vector, {"control_key": "param_slot_weight"})
    return headwise(
        f"abc(slots={slots})", vector, {"control_key": "param_compress_k", "control_value": "param_compress_v"}
    )
