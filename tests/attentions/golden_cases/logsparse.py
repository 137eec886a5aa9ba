"""Vectors of LogSparse: a port in circulation, whose masks depend on the maximum length, and the bare masks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import HeadwiseAttention
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    spec, longest = f"flow_forecast_logsparse(sub_length={sizes['sub_len']})", sizes["win_len"]
    if "q" in vector.arrays:
        return headwise(spec, vector, max_length=longest)
    layer = attentions.get(spec)(1, 1, vector.pattern, max_length=longest).double().eval()
    assert isinstance(layer, HeadwiseAttention)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        q = torch.ones(1, 1, longest, 1, dtype=torch.float64)
        weights = layer.weights(q, q)
        assert weights is not None
        return (weights[0, 0] > 0).double()

    return Replay(spec, run)
