"""Vectors of ETC: the authors' layers with shared projections, whose first tokens are the global ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.attentions.parity import Replay, Vector, agree, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    globals_, radius, distance = sizes["global_len"], sizes["local_radius"], sizes["max_distance"]
    agree(vector, long_len=vector.arrays["q"].shape[2] - globals_)
    ours = 0 if distance is None else max(distance, 1)  # 0 is no distance at all here, and in the source one label
    spec = f"etc(radius={radius}, global_tokens={globals_}, stride=1, max_distance={ours})"
    if distance is None:
        return headwise(spec, vector)
    replayed = headwise(spec, vector, {name: name for name in ("a", "b", "a_global", "b_global")})

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        # one table for both streams: distances, then ordinary query and global key, then global query, ordinary key
        both = {"a": arrays["param_relative_emb_table"], "b": arrays["param_relative_bias_table"]}
        if distance == 0:  # the same label for every distance
            both = {name: torch.cat([table[:1], table[:1], table]) for name, table in both.items()}
        tables = {name: table[:-1] for name, table in both.items()}
        tables |= {f"{name}_global": torch.cat([table[:-2], table[-1:]]) for name, table in both.items()}
        return replayed.run({**arrays, **tables})

    return Replay(spec, run)
