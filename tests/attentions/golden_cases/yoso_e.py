"""Vectors of YOSO's expectation: the authors' first version, with the paper's gradient, and their second, a twin."""

from tests.attentions.parity import Replay, Vector, headwise

VERSIONS = {1: "yoso_e", 2: "authors_yoso"}


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    taps = sizes["conv_window"] or 0
    spec = f"{VERSIONS[sizes['version']]}(bits={sizes['hashcode_len']}, conv={taps})"
    return headwise(spec, vector, {"conv.weight": "param_conv__weight"} if taps else {})
