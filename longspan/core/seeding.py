"""Seeds: one integer names every random stream of a run, and streams never share numbers."""

import hashlib


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called `names` under `seed`; unrelated streams for unrelated names.

    >>> derive(0, "shuffle", 3) == derive(0, "shuffle", 3) != derive(0, "shuffle", 4)
    True
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices) from one integer."""
    import random

    import numpy as np
    import torch

    random.seed(derive(seed, "python"))
    np.random.seed(derive(seed, "numpy") % 2**32)
    torch.manual_seed(derive(seed, "torch"))
