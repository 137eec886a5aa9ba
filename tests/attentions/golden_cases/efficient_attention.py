"""Vectors of efficient attention: the authors' code for images, whose positions are read row by row."""

import math

from tests.attentions.parity import Contradiction, Replay, Vector, agree, headwise


def replay(vector: Vector) -> Replay:
    positions, image = vector.arrays["k"].shape[2], vector.meta["hyperparameters"].get("image")
    if image is not None and math.prod(image) != positions:
        raise Contradiction(f"its meta says image={image}, its arrays have {positions} positions")
    agree(vector, dk=vector.arrays["k"].shape[3], dv=vector.arrays["v"].shape[3])
    return headwise("efficient_attention", vector)
