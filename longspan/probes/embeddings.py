"""Embedding similarity: which intensities, and which positions, look alike to a model of images? (figure 4 of LRA)

Cosines between the embeddings of the 256 intensities, and between the learned position of every pixel and those of all
others. Drawn as a tile for each pixel, the latter show what the model has learned of the second dimension.
"""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from longspan.core.errors import UsageError
from longspan.probes.base import Answer, TrainedModel

SAMPLES = None
INTENSITIES = 256
METHOD = "Cosine similarity between embedding vectors of intensities, and between learned position vectors of pixels."


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    """Nothing is sampled: the answer is in the weights alone."""
    trained.must_be_of(
        ("image", "pathfinder", "pathfinder_cls"), "Embeddings of intensities and of pixels belong to images"
    )
    table, positions = getattr(trained.model, "embedding", None), getattr(trained.model, "positions", None)
    if not isinstance(table, nn.Embedding):
        raise UsageError(
            "The model reads intensities as numbers, so they have no embeddings; "
            "name the card of a run with input_mode=ids."
        )
    if not isinstance(positions, nn.Parameter):
        raise UsageError(
            f"The positions of this run on {trained.task.name} are sinusoids, which teach nothing; "
            "name the card of a run with learned positions (--set model.positions=learned)."
        )
    intensity = similarity(table.weight.detach()[-INTENSITIES:])  # ids are shifted where 0 means padding
    place = similarity(positions.detach()[trained.leading :])
    side = int(len(place) ** 0.5)
    return Answer(
        method=METHOD,
        results={
            "intensities": INTENSITIES,
            "side": side,
            "by_intensity_distance": by_distance(intensity),
            **neighbours(place, side),
        },
        arrays={"intensity": _compact(intensity), "position": _compact(place)},
    )


def similarity(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Cosines of all pairs; the diagonal is 1."""
    unit = F.normalize(vectors.double(), dim=-1)
    return (unit @ unit.T).clamp(-1, 1).float().cpu()


def by_distance(matrix: Float[Tensor, "n n"]) -> list[float]:
    """Mean similarity of all pairs that lie 0, 1, 2... apart."""
    return [round(float(matrix.diagonal(offset).mean()), 5) for offset in range(len(matrix))]


def neighbours(matrix: Float[Tensor, "pixels pixels"], side: int) -> dict[str, float]:
    """Mean similarity of a pixel with the one beside it, the one below it, and all others."""
    tiles = matrix.unflatten(1, (side, side)).unflatten(0, (side, side))  # [y x y' x']
    place = torch.arange(side)
    beside = torch.stack([tiles[y, place[:-1], y, place[1:]] for y in range(side)])
    below = torch.stack([tiles[place[:-1], x, place[1:], x] for x in range(side)])
    others = (matrix.sum() - matrix.trace()) / (matrix.numel() - len(matrix))
    return {"beside": float(beside.mean()), "below": float(below.mean()), "others": float(others)}


def _compact(matrix: Float[Tensor, "n n"]) -> np.ndarray:
    """Three decimals in half precision, which compress well."""
    return np.round(matrix.numpy(), 3).astype(np.float16)
