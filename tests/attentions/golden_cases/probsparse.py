"""Vectors of ProbSparse attention: the authors' code, with the keys that it drew."""

from collections.abc import Mapping

from torch import Tensor

from longspan import attentions
from longspan.attentions.probsparse import ProbSparse
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay:
    spec = f"probsparse(factor={vector.meta['hyperparameters']['factor']}, released=True)"
    _, heads, _, channels = vector.arrays["q"].shape

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        layer = attentions.get(spec)(heads * channels, heads, vector.pattern)
        assert isinstance(layer, ProbSparse)
        drawn = arrays["param_sampled_keys"]

        def sampled(place: Tensor, count: Tensor, samples: int) -> Tensor:
            assert drawn.shape == (place.shape[1], samples)
            return drawn.expand(len(place), -1, -1)

        layer.sampled = sampled  # pyright: ignore[reportAttributeAccessIssue]
        return layer.attend(arrays["q"], arrays["k"], arrays["v"])

    return Replay(spec, run)
