"""Vectors of FAVOR+: the authors' code, and the most widely used port, which zeroes only the values of padding."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = {"features": sizes["features"]}
    if "kernel" in sizes:
        name, options = "performer", options | {"kernel": sizes["kernel"], "eps": sizes["kernel_eps"]}
    else:
        release = "authors" if "google-research" in vector.meta["source"] else "port"
        name, options = "google_performer", options | {"eps": sizes["eps"], "release": release}
    spec = f"{name}({', '.join(f'{option}={value}' for option, value in options.items())})"
    if vector.key_mask is None:
        return headwise(spec, vector, {"projection": "param_projection"})
    padded = vector.arrays["key_padding_mask"][:, None, :, None]
    seen = replace(vector, arrays={name: a for name, a in vector.arrays.items() if name != "key_padding_mask"})
    whole = headwise(spec, seen, {"projection": "param_projection"})

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        return whole.run({**arrays, "v": arrays["v"].masked_fill(padded, 0)})

    return replace(whole, run=run)
