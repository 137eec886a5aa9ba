"""Seeds: all random streams of a run are derived from one integer, and are independent of one another."""

import hashlib


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called `names` under `seed`; different names give independent streams.

    >>> derive(0, "shuffle", 3) == derive(0, "shuffle", 3) != derive(0, "shuffle", 4)
    True
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_torch(seed: int, device: object) -> None:
    """What `torch.manual_seed` does, fast enough for every step of a run: on the CPU, and on the GPU if that computes.

    The original also leaves a seed for every kind of device that is absent, with a copy of the call stack each.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.device(str(device)).type == "cuda":
        torch.cuda.manual_seed_all(seed)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices) from one integer."""
    import random

    import numpy as np
    import torch

    random.seed(derive(seed, "python"))
    np.random.seed(derive(seed, "numpy") % 2**32)
    torch.manual_seed(derive(seed, "torch"))
