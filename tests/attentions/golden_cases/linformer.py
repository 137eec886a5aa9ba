"""Vectors of Linformer: the most widely used package, and LRA's form with one matrix for keys and values."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from tests.attentions.parity import Replay, Vector, agree, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    rank, longest = sizes["projected_length"], sizes["max_length"]
    agree(vector, shared_kernel="param_lr_kernel" in vector.arrays)
    if "param_lr_kernel" in vector.arrays:
        return headwise(
            f"linformer(rank={rank}, sharing='key-value')",
            vector,
            {"to_key_slots": "param_lr_kernel"},
            max_length=longest,
        )
    if sizes.get("share_kv"):  # that package uses the keys as values too
        shared = headwise(
            f"linformer(rank={rank}, sharing='key-value')", vector, {"to_key_slots": "param_proj_k"}, max_length=longest
        )

        def run(arrays: Mapping[str, Tensor]) -> Tensor:
            return shared.run({**arrays, "v": arrays["k"]})

        return replace(shared, run=run)
    parameters = {"to_key_slots": "param_proj_k", "to_value_slots": "param_proj_v"}
    return headwise(f"linformer(rank={rank})", vector, parameters, max_length=longest)
