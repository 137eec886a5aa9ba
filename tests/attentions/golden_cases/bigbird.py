"""Vectors of BigBird: Hugging Face's code, its recorded random blocks turned back into the draws that give them."""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from longspan.attentions.bigbird import TABLE
from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if not sizes["train_mode"]:
        return "in evaluation mode that package replaces all random blocks by block 0, which then counts several times"
    draws = _draws(vector.arrays["param_random_blocks"])
    spec = f"bigbird(block={sizes['block']}, random={sizes['random_blocks']}, ends=width)"
    known = replace(vector, arrays={**vector.arrays, "draws": draws})
    replayed = headwise(spec, known, {"draws": "draws"})
    return replace(replayed, run=lambda arrays: replayed.run({**arrays, "draws": draws}))


def _draws(blocks: Int[Tensor, "h g r"]) -> Int[Tensor, "h table r"]:
    """The rank of each block among the candidates that are left: what drawing without replacement would have drawn."""
    heads, middle, random = blocks.shape
    draws = torch.zeros(heads, TABLE, random, dtype=torch.long)
    for h in range(heads):
        for u in range(1, middle + 1):
            left = [block for block in range(1, middle + 1) if abs(block - u) > 1]
            for i, block in enumerate(blocks[h, u - 1].tolist()):
                draws[h, u, i] = left.index(block)
                left.remove(block)
    return draws
