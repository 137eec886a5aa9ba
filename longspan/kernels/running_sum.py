"""Running sum: the sum of all tokens up to each, for rows so long that they are summed in chunks side by side.

A GPU walks along a row token by token, for all channels at once. Within chunks there are many rows, and what comes
before a chunk is a running sum again, over the sums of chunks.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.chunk_states import before

CHUNK = 64


def running_sum(x: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
    n = x.shape[2]
    if n <= CHUNK:
        return x.cumsum(dim=2)
    count = -(-n // CHUNK)
    missing = count * CHUNK - n
    chunks = (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (count, CHUNK))
    found = before(running_sum(chunks.sum(dim=3))[..., None, :])
    return (chunks.cumsum(dim=3) + found).flatten(2, 3)[:, :, :n]
