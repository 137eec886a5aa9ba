"""Vectors of BigBird: Hugging Face's code, its recorded random blocks converted back into the draws that give them.

That package treats the last block of the padded batch as the end of every row.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from longspan import attentions
from longspan.attentions.bigbird import TABLE, BigBird
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if not sizes["train_mode"]:
        return "in evaluation mode that package replaces all random blocks by block 0, which then counts several times"
    spec = f"bigbird(block={sizes['block']}, random={sizes['random_blocks']})"
    _, heads, n, channels = vector.arrays["q"].shape
    layer = attentions.get(spec)(heads * channels, heads, vector.pattern).eval()
    assert isinstance(layer, BigBird)
    layer.draws.copy_(_draws(vector.arrays["param_random_blocks"]))
    last = torch.tensor([[(n - 1) // sizes["block"]]])
    layer.last_blocks = lambda n, mask, device: last  # padded or not

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        q, k, v = (arrays[name] for name in "qkv")
        return layer.attend(q, k, v, key_mask=vector.key_mask, query_mask=vector.key_mask)

    return Replay(spec, run)


def _draws(blocks: Int[Tensor, "h g r"]) -> Int[Tensor, "h table r"]:
    """The rank of each block among the remaining candidates, as drawing without replacement would have drawn it."""
    heads, middle, random = blocks.shape
    draws = torch.zeros(heads, TABLE, random, dtype=torch.long)
    for h in range(heads):
        for u in range(1, middle + 1):
            left = [block for block in range(1, middle + 1) if abs(block - u) > 1]
            for i, block in enumerate(blocks[h, u - 1].tolist()):
                draws[h, u, i] = left.index(block)
                left.remove(block)
    return draws
