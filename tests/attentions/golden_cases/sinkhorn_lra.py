"""Vectors of Long Range Arena's Sinkhorn attention, as released."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = f"block={sizes['block']}, max_blocks={sizes['max_blocks']}, activation={sizes['activation']}"
    return headwise(
        f"lra_sinkhorn({options})", vector, {"sort_kernel": "param_sort_kernel", "sort_bias": "param_sort_bias"}
    )
