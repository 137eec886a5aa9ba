"""Vectors of Skyformer: the authors' code, with the tokens it sampled."""

from collections.abc import Mapping
from unittest import mock

from torch import Tensor

from longspan import attentions
from longspan.attentions.released.authors_skyformer import AuthorsSkyformer
from tests.attentions.parity import Replay, Vector, agree


def replay(vector: Vector) -> Replay | str:
    sizes, drawn = vector.meta["hyperparameters"], vector.arrays["param_sketching_matrix"]
    if (vector.arrays["param_random_sign"] != 1).any():
        return "authors_skyformer adds up what it drew, without signs"
    agree(vector, accumulation=drawn.shape[1], nb_features=drawn.shape[2])
    options = f"landmarks={sizes['nb_features']}, accumulation={sizes['accumulation']}"
    spec = f"authors_skyformer({options}, iterations={sizes['inv_iter']}, ridge={sizes['ridge']})"
    _, heads, _, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern)
    assert isinstance(layer, AuthorsSkyformer)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        with mock.patch.object(layer, "draw", return_value=drawn):
            return layer.attend(arrays["q"], arrays["k"], arrays["v"], key_mask=vector.key_mask)

    return Replay(spec, run)
