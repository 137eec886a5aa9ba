"""Vectors of ProbSparse attention: the authors' code, with the keys it sampled."""

from collections.abc import Mapping

from torch import Tensor

from longspan import attentions
from longspan.attentions.released.informer_probsparse import InformerProbSparse
from longspan.kernels.sampled_qk import log_budget
from tests.attentions.parity import Replay, Vector, agree


def replay(vector: Vector) -> Replay:
    factor = vector.meta["hyperparameters"]["factor"]
    spec = f"informer_probsparse(factor={factor})"
    _, heads, queries, channels = vector.arrays["q"].shape
    agree(vector, top=log_budget(factor, queries), samples=log_budget(factor, vector.arrays["k"].shape[2]))

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        layer = attentions.get(spec)(heads * channels, heads, vector.pattern)
        assert isinstance(layer, InformerProbSparse)
        drawn = arrays["param_sampled_keys"]

        def sampled(queries: int, keys: int) -> Tensor:
            assert drawn.shape == (queries, log_budget(layer.factor, keys))
            return drawn

        layer.sampled = sampled
        return layer.attend(arrays["q"], arrays["k"], arrays["v"])

    return Replay(spec, run)
