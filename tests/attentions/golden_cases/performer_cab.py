"""Vectors of CAB's Performer, as released, with its two constants taken from the vector."""

from collections.abc import Mapping
from dataclasses import replace
from unittest import mock

from torch import Tensor

from longspan.attentions.released import cab_performer
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    plain = headwise(f"cab_performer(features={sizes['features']})", vector, {"projection": "param_projection"})

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        with mock.patch.multiple(cab_performer, STABILISER=sizes["eps"], SMALLEST_SUM=sizes["clamp"]):
            return plain.run(arrays)

    return replace(plain, run=run)
