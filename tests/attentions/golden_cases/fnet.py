"""Vectors of FNet: Hugging Face's transform."""

from longspan import attentions
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay:
    layer = attentions.get("fnet")(vector.arrays["x"].shape[-1], 1, vector.pattern)
    return Replay("fnet", lambda arrays: layer(arrays["x"]))
